"""What the bodies of requests are made of: frozen models that refuse by name what they don't have."""

from pydantic import BaseModel, ConfigDict, model_validator


class Body(BaseModel):
    """A request's part. A field that it doesn't have is refused by name."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class GivenOnly(Body):
    """A body in which null is the same as leaving the parameter out, as OpenAI reads it."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, body: object) -> object:
        if not isinstance(body, dict):
            return body
        return {name: value for name, value in body.items() if value is not None}
