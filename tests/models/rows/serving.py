"""The rent model, for Headway's verbs."""

import joblib
import numpy as np

import headway


class Rent(headway.Model):
    inputs = {"flat": headway.Row({"rooms": float, "area": float, "heating": ["gas", "oil"]})}
    outputs = {"rent": headway.Number(unit="EUR")}
    files = ("model.joblib",)

    def load(self, folder):
        _, self.model = joblib.load(folder / "model.joblib")

    def predict(self, batch):
        flats = [each["flat"] for each in batch]
        x = np.array([[flat["rooms"], flat["area"] / 30, flat["heating"] == "gas"] for flat in flats])
        return [{"rent": value} for value in self.model.predict(x)]
