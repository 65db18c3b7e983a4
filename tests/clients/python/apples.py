"""The structure that scripts ask for, of clients that need pydantic anyway."""

from typing import Literal

from pydantic import BaseModel, Field


class Apples(BaseModel):
    """Some apples."""

    name: Literal["Tom", "Ann"]
    apples: int = Field(ge=0, le=9)  # without bounds the demo writes digits to the end
