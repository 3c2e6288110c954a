"""A Lightning callback that logs what the training loaders did, once per epoch."""

import lightning

import shmloader


class LoaderStats(lightning.Callback):
    """
    Logs the batches of an epoch, and how many of them had to be copied out of their slot.

    Lightning may have built your loaders anew, with another sampler, so the ones that count are the
    Trainer's, not those that you gave it.
    """

    def on_train_epoch_start(self, trainer, module):
        self._before = shmloader.stats(trainer.train_dataloader)

    def on_train_epoch_end(self, trainer, module):
        now = shmloader.stats(trainer.train_dataloader)
        module.log("loader/batches", float(now.batches - self._before.batches))
        module.log("loader/spilled", float(now.spilled - self._before.spilled))
