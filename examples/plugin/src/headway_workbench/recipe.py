"""The recipe's entry: names of functions, which are imported when they are used."""

from headway.plugins import Recipe

HOME = "headway_workbench.line"
RECIPE = Recipe(
    name="line",
    summary="fit a line through points",
    config="headway_workbench.config:Config",
    train=f"{HOME}:train",
    rebuild=f"{HOME}:rebuild",
    bundle=f"{HOME}:bundle",
    evaluate=f"{HOME}:evaluate",
    predictor=f"{HOME}:Predictor",
    takes="text",
    data_default="",  # it draws its points itself
)
