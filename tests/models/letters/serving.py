"""The language model, for Headway's verbs: a text is continued letter by letter."""

import torch
from net import Letters, letters_of

import headway


class Writer(headway.Model):
    inputs = {"prompt": headway.Text("the beginning"), "letters": headway.Number(low=1, high=200, required=False)}
    outputs = {"text": headway.Text()}
    files = ("out/letters.pt",)

    def load(self, folder):
        self.net = Letters().eval()
        self.net.load_state_dict(torch.load(folder / "out" / "letters.pt", weights_only=True)["model"])

    def predict(self, batch):
        return [{"text": "".join(self.stream(each))} for each in batch]

    @torch.no_grad()
    def stream(self, sample):
        chances, state = self.net(letters_of(sample["prompt"]))
        for _ in range(int(sample.get("letters", 20))):
            letter = int(chances[0, -1].argmax())
            yield chr(letter)
            chances, state = self.net(torch.tensor([[letter]]), state)

    def evaluate(self, data):
        text = letters_of(data["rhyme"].read_text())
        with torch.no_grad():
            right = self.net(text[:, :-1])[0][0].argmax(1) == text[0, 1:]
        return headway.Scores({"accuracy": right.float().tolist()}, data="the rhyme's letters")
