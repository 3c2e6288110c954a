"""What core/kinds takes apart: exactly, by the class itself, and never against its own way."""

import copyreg

import numpy
import PIL.Image
import pytest

from shmloader.core.kinds import _FOUND_MAX, _found, reducer_of
from tests.helpers.leaves.parts import are_same, where
from tests.helpers.leaves.writes import draw


@pytest.fixture
def send(forger):
    """Give a batch's whole way."""

    def send(batch):
        forger.write(batch)
        return forger.read()

    return send


class Shot(numpy.ndarray):
    """A subclass without a reduction of its own."""


class Signed(numpy.ndarray):
    """One that is pickled in its own way."""

    def __reduce__(self):
        return signed, (self.view(numpy.ndarray),)


def signed(plain):
    made = plain.view(Signed)
    made.signature = "by its own way"
    return made


def test_a_class_with_a_reduction_of_its_own_keeps_it(send):
    """A subclass that says how it is pickled is asked."""
    again = send(numpy.arange(4).view(Signed))

    assert (Signed, "by its own way") == (type(again), again.signature)
    assert [0, 1, 2, 3] == again.tolist()


def test_a_reduction_that_users_register_is_asked(send):
    """copyreg's table comes first, also if the class was met before."""
    assert Shot is type(send(numpy.arange(4).view(Shot)))
    copyreg.pickle(Shot, lambda shot: (signed, (shot.view(numpy.ndarray),)))
    try:
        assert Signed is type(send(numpy.arange(4).view(Shot)))
        assert Signed is type(send(Inside(numpy.arange(4).view(Shot))).it)
    finally:
        del copyreg.dispatch_table[Shot]


class Inside:
    """An object that travels as a pickle."""

    def __init__(self, it):
        self.it = it


def test_what_lies_in_an_object_is_taken_apart_too(send):
    """An image and an array in a pickled object lie in the slot."""
    made = Inside([PIL.Image.new("RGB", (40, 30), (1, 2, 3)), numpy.arange(9).view(Shot)])
    again = send(made)

    assert are_same(made, again)
    assert "all" == where(again)


def test_classes_without_an_end_are_forgotten():
    """A dataset that makes a class for each sample does not fill the memory with them."""
    for number in range(_FOUND_MAX + 10):
        reducer_of(type(f"Made {number}", (), {}))

    assert len(_found) <= _FOUND_MAX


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 4), (2, 0, 3)])
@pytest.mark.parametrize("code", ["f4", "i4,S3", "M8[s]", "U3", "?"])
def test_subclasses_of_any_shape_and_type(send, shape, order, code):
    """An array of a subclass arrives with its type, shape, order and values."""
    plain = numpy.zeros(shape, code, order)
    made = plain.view(Shot)
    again = send([made, plain.view(numpy.recarray)])

    assert are_same(made, again[0])
    assert numpy.recarray is type(again[1])
    assert again[0].flags.writeable
    masked = numpy.ma.masked_array(plain, numpy.zeros(shape, bool))
    assert are_same(masked, send(masked))


MODES = ["1", "L", "P", "LA", "PA", "RGB", "RGBA", "RGBX", "RGBa", "CMYK", "YCbCr", "HSV", "I"]


@pytest.mark.parametrize("mode", [*MODES, "I;16", "F"])
def test_images_of_every_mode(send, mode):
    """An image arrives with its mode, size, info, palette and pixels, and may be drawn into."""
    made = PIL.Image.new(mode, (137, 123))
    made.putpixel(
        (3, 3), tuple(range(1, 1 + len(made.getbands()))) if len(made.getbands()) > 1 else 1
    )
    made.info["dpi"] = (72, 72)
    if mode in ("P", "PA"):
        made.putpalette(list(range(256)) * 3)
    again = send(made)

    assert are_same(made, again)
    assert ("none" if mode == "1" else "all") == where(again)
    for image in (made, again):
        draw(image)
    assert are_same(made, again)


class Sketch(PIL.Image.Image):
    """An image with more in its state."""

    title = ""

    def __getstate__(self):
        return [*super().__getstate__(), self.title]

    def __setstate__(self, state):
        super().__setstate__(state)
        self.title = state[5]


class Odd(PIL.Image.Image):
    """An image whose state is no list."""

    def __getstate__(self):
        return {"size": self.size}

    def __setstate__(self, state):
        self.__init__()
        self.size_told = state["size"]


def of_kind(kind):
    made = PIL.Image.new("L", (6, 4), 7)
    made.__class__ = kind
    return made


def test_subclasses_of_images(send):
    """A subclass's own state is asked for, with all that it adds; or it goes its own way."""
    made = of_kind(Sketch)
    made.title = "a title"
    again = send(made)
    odd = send(of_kind(Odd))

    assert (Sketch, "a title", bytes([7] * 24)) == (type(again), again.title, again.tobytes())
    assert (Odd, (6, 4)) == (type(odd), odd.size_told)


OBJECTS = {
    "texts": ["a", "\u00e9", "\ud800", ""],
    "numbers": [1, 2.5, True, None, 2**70],
    "other objects": [1, (2,), {3}],
    "long texts": ["x" * 5000, "y"],
}


@pytest.mark.parametrize("name", OBJECTS)
def test_arrays_of_objects(send, name):
    """An array of objects arrives with what is in it, alone, in an object, and in any order."""
    made = numpy.empty((2, len(OBJECTS[name])), object)
    made[:] = [OBJECTS[name], OBJECTS[name][::-1]]
    texts = OBJECTS[name]
    for array in (made, numpy.asfortranarray(made), made[:, ::2], made[0, 0:0]):
        again = send([array, Inside([texts, array]), texts])
        assert array.tolist() == again[0].tolist()
        assert again[0] is again[1].it[1] and again[2] is again[1].it[0]
        assert (array.shape, array.flags.fnc) == (again[0].shape, again[0].flags.fnc) or (
            not array.flags.c_contiguous
        )


COUNT = 20_000


def arrow_columns():
    """Columns of Arrow of many types, and nulls."""
    arrow = pytest.importorskip("pyarrow")
    numbers = arrow.array(numpy.arange(COUNT))
    texts = arrow.array([f"a text, number {each}" if each % 7 else None for each in range(COUNT)])
    offsets = numpy.arange(COUNT + 1)
    return {
        "numbers": numbers,
        "nulls": arrow.array([None, True, False, True] * (COUNT // 4)),
        "texts": texts,
        "lists": arrow.LargeListArray.from_arrays(offsets, texts),
        "fixed": arrow.FixedSizeListArray.from_arrays(arrow.array(numpy.arange(3 * COUNT)), 3),
        "structs": arrow.StructArray.from_arrays([numbers, texts], ["n", "s"]),
        "map": arrow.MapArray.from_arrays(offsets.astype("i4"), texts.fill_null("x"), numbers),
    }


@pytest.mark.parametrize("name", [
    "numbers", "nulls", "texts", "lists", "fixed", "structs", "map",
])  # fmt: skip
def test_rows_of_an_arrow_array_come_without_the_others(forger, name):
    """Arrays, batches and tables that view some rows are sent with the buffers of these."""
    arrow = pytest.importorskip("pyarrow")
    whole = arrow_columns()[name]
    rows = whole[5000:5020]
    for made in (rows, arrow.table({"x": rows}), arrow.record_batch({"x": rows})):
        payload_bytes = forger.answer(forger.write(made))["payload_bytes"]
        again = forger.read()
        assert payload_bytes < 4096
        assert made.equals(again) and made.type == again.type if made is rows else True
    forger.write(whole)
    assert are_same(whole, forger.read())
