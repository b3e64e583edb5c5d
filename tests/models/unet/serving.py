"""The U-Net, for Headway's verbs."""

import torch
from net import UNet, discs
from safetensors.torch import load_file

import headway


class Discs(headway.Model):
    inputs = {"image": headway.Image("a picture of a disc")}
    outputs = {"mask": headway.Picture("the disc")}

    def load(self, folder):
        self.net = UNet().eval()
        self.net.load_state_dict(load_file(folder / "model.safetensors"))

    @torch.no_grad()
    def predict(self, batch):
        pictures = [torch.from_numpy(each["image"].copy()).permute(2, 0, 1)[None] for each in batch]
        return [self.net(picture[:, :, : -picture.shape[2] % -2 or None])[0].numpy() for picture in pictures]

    def evaluate(self, data):
        pictures, wanted = discs(48, seed=2)
        with torch.no_grad():
            found = self.net(pictures) > 0.5
        both, either = (found & (wanted > 0)).sum((1, 2)), (found | (wanted > 0)).sum((1, 2))
        return headway.Scores({"iou": (both / either).tolist()}, data="48 discs")

    def graph(self):
        return headway.Graph(
            name="unet",
            module=self.net,
            inputs={"image": discs(2, seed=3)[0]},
            outputs=("mask",),
            dynamic={"image": {0: "batch"}},
        )
