"""A callback for the Hugging Face Trainer that logs what the training loader did, each epoch."""

from transformers import TrainerCallback

import shmloader


class LoaderStats(TrainerCallback):
    """
    Adds to the Trainer's log the batches of an epoch, and how many were copied out of their slot.

    The loader in the Trainer is Accelerate's, around the one that counts.
    """

    def on_epoch_begin(self, args, state, control, train_dataloader=None, **_):
        self._before = shmloader.stats(train_dataloader)

    def on_epoch_end(self, args, state, control, train_dataloader=None, **_):
        now = shmloader.stats(train_dataloader)
        counts = {
            "loader/batches": now.batches - self._before.batches,
            "loader/spilled": now.spilled - self._before.spilled,
        }
        state.log_history.append({"epoch": state.epoch, "step": state.global_step, **counts})
