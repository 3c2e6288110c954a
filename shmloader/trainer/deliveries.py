"""Which delivery a loader has: from slots, pinned, through a function, or to a device."""

from shmloader.memory.segment_pool import SegmentPool
from shmloader.options.options import Options
from shmloader.pinning.host_delivery import PinnedDelivery, PlainDelivery
from shmloader.transport.delivery import Delivery
from shmloader.transport.transport import Transport


def choose(
    options: Options,
    transport: Transport,
    pool: SegmentPool,
    *,
    in_order: bool,
    pins: bool,
    pin_device: str | None,
) -> Delivery:
    """
    Choose how a loader's batches get from their slots to the user.

    `in_order`, `pins` and `pin_device` are torch's options, with `pins` only if there is a device.
    """
    device = options.device
    if device is not None and device.copies:
        from shmloader.device.to_device import DeviceDelivery  # the component may be absent

        return DeviceDelivery(device, transport, pool, in_order=in_order)
    if pins:
        return PinnedDelivery(transport, pool, pin_device)
    return PlainDelivery(transport.received, None if device is None else device.transform)
