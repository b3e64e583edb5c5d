import csv


def rows(path):
    with open(path) as file:
        return [([float(row["green"]), float(row["spots"])], int(row["sick"])) for row in csv.DictReader(file)]
