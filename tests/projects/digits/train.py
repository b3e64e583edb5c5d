"""Classify drawn digits with Lightning: a module, a data module, ModelCheckpoint and the CSV logger."""

import os
import time

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset


class Digits(L.LightningDataModule):
    def setup(self, stage):
        generator = torch.Generator().manual_seed(0)
        labels = torch.arange(200) % 10
        pixels = torch.nn.functional.one_hot(labels, 16) + torch.randn(200, 16, generator=generator) / 4
        self.train_set = TensorDataset(pixels[:160], labels[:160])
        self.val_set = TensorDataset(pixels[160:], labels[160:])

    def train_dataloader(self):
        return DataLoader(self.train_set, batch_size=16, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val_set, batch_size=40)


class Classifier(L.LightningModule):
    def __init__(self, width=32, lr=0.01):
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(torch.nn.Linear(16, width), torch.nn.ReLU(), torch.nn.Linear(width, 10))

    def training_step(self, batch, index):
        loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, index):
        self.log("val_accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

    def on_train_epoch_end(self):
        print(f"epoch {self.current_epoch + 1}/{self.trainer.max_epochs}", flush=True)
        time.sleep(float(os.environ.get("EPOCH_S", "0")))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


if __name__ == "__main__":
    L.seed_everything(7)
    best = ModelCheckpoint(dirpath="checkpoints", filename="best", monitor="val_accuracy", mode="max", save_last=True)
    trainer = L.Trainer(
        max_epochs=4, accelerator="cpu", logger=CSVLogger("logs"), callbacks=[best], log_every_n_steps=1
    )
    model = Classifier()
    trainer.fit(model, datamodule=Digits())
    torch.save(model.state_dict(), "digits.pt")
