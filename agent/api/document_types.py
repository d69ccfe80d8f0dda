"""The base of the API's JSON documents, and the types of texts and values that may hold secrets."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict

from flettner.redaction import mask, masked
from flettner.vllm_facts.values import Value

DocumentText = Annotated[str, AfterValidator(mask)]  # may quote a server's log or a command line with secrets
Values = Annotated[Mapping[str, Value], AfterValidator(masked)]


class Document(BaseModel):
    model_config = ConfigDict(frozen=True)
