"""The structure that scripts ask for, of clients that need pydantic anyway."""

from typing import Literal

from pydantic import BaseModel


class Apples(BaseModel):
    """Some apples."""

    name: Literal["Tom", "Ann"]
    apples: int
