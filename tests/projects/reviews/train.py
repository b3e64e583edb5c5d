"""Fine-tune a small BERT on film reviews with Hugging Face's Trainer, as in its examples."""

import argparse
import csv
import os
import time

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)


class Reviews(torch.utils.data.Dataset):
    def __init__(self, path):
        with open(path) as file:
            self.rows = list(csv.DictReader(file))
        words = sorted({word for row in self.rows for word in row["text"].split()})
        self.vocabulary = {word: number for number, word in enumerate(["<pad>", *words])}

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        ids = [self.vocabulary[word] for word in self.rows[index]["text"].split()]
        padding = 8 - len(ids)
        return {
            "input_ids": torch.tensor(ids + [0] * padding),
            "attention_mask": torch.tensor([1] * len(ids) + [0] * padding),
            "labels": int(self.rows[index]["label"]),
        }


class PrintEpoch(TrainerCallback):
    def on_epoch_end(self, args, state, control, **kwargs):
        print(f"epoch {round(state.epoch)}/{int(args.num_train_epochs)}", flush=True)
        time.sleep(float(os.environ.get("EPOCH_S", "0")))


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--output_dir", default="out")
options = parser.parse_args()

set_seed(0)
reviews = Reviews("reviews.csv")
config = BertConfig(
    vocab_size=len(reviews.vocabulary), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
)
trainer = Trainer(
    model=BertForSequenceClassification(config),
    args=TrainingArguments(
        output_dir=options.output_dir,
        num_train_epochs=options.epochs,
        per_device_train_batch_size=4,
        learning_rate=1e-3,
        save_strategy="epoch",
        save_total_limit=2,
        logging_steps=1,
        report_to="none",
    ),
    train_dataset=reviews,
    callbacks=[PrintEpoch()],
)
trainer.train()
trainer.save_model(f"{options.output_dir}/final")
