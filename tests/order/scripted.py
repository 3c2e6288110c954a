"""What the datasets of these tests share: a length, and a script that says where workers die."""

from torch.utils.data import Dataset


class Scripted(Dataset):
    """
    A dataset of so many samples.

    Attributes:
        script: Called with the name of a point, at which it may end the process; None: none does.
    """

    count = 0

    def __init__(self, script=None):
        self.script = script

    def __len__(self):
        return self.count

    def pass_by(self, point):
        """Go on behind a point, unless the script says that the process dies there."""
        if self.script is not None:
            self.script(point)
