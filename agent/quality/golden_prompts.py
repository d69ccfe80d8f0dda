"""The golden prompts, which blue and green answer before green gets traffic."""

from dataclasses import dataclass

from flettner.agent.domain.warm_up import SharedPrefix

LEAST = 8  # prompts; with fewer, six wrong answers cannot be distinguished from chance

PROMPTS = (
    "The capital of France is",
    "Water boils at sea level at a temperature of",
    "The chemical symbol for gold is",
    "The largest planet of the solar system is",
    "The opposite of hot is",
    "Monday, Tuesday, Wednesday, Thursday,",
    "1, 1, 2, 3, 5, 8, 13, 21,",
    "2, 4, 8, 16, 32, 64,",
    "Q: What is 17 + 25?\nA:",
    "Q: What is 12 times 12?\nA:",
    "Q: A train leaves at 9:40 and arrives at 11:05. How many minutes does it take?\nA:",
    "Q: Anna has three apples and buys two bags of four. How many apples has she now?\nA:",
    "Q: If all roses are flowers and some flowers fade quickly, do all roses fade quickly?\nA:",
    "Q: Which is heavier, a kilogram of iron or a kilogram of feathers?\nA:",
    "Q: Who wrote the play Romeo and Juliet?\nA:",
    "Q: In which year did people first land on the Moon?\nA:",
    "Translate to French: Good morning, how are you?\nFrench:",
    "Translate to German: The house is small.\nGerman:",
    "Translate to Spanish: I would like a glass of water.\nSpanish:",
    "Übersetze ins Englische: Der Zug kommt heute später.\nEnglisch:",
    "Traduis en anglais : Il fait beau aujourd'hui.\nAnglais :",
    "请把下面的句子翻译成英文:我喜欢喝茶。\n英文:",
    "def fibonacci(n):\n    ",
    "def is_palindrome(text: str) -> bool:\n    ",
    "// Returns the larger of two numbers.\nfunction max(a, b) {\n",
    "SELECT name, COUNT(*) FROM orders",
    '{"name": "Ada", "age": 36, "city":',
    "<ul>\n  <li>One</li>\n  <li>Two</li>\n  <li>",
    "Write one sentence about the sea.\n",
    "Explain in one sentence why the sky is blue.\n",
    "List three fruits, one a line:\n1.",
    "Give a recipe for pancakes in five short steps:\n1.",
    "Summarize in a few words: The meeting was moved from Tuesday to Friday as the room was taken.\nSummary:",
    "Correct the spelling: I recieved teh letter yesturday.\nCorrected:",
    "Is this review positive or negative? 'The battery died after two days.'\nAnswer:",
    "Is this review positive or negative? 'Best coffee in town, and so friendly!'\nAnswer:",
    "Extract the date: 'The contract of 3 May 2021 ends on 30 June 2024.' Start date:",
    "Once upon a time, in a village by the river, there lived",
    "Dear Sir or Madam,\nI am writing to you about",
    "To be, or not to be, that is",
)
"""Short prompts of many kinds: facts, sequences, sums, logic, languages, code, markup, tasks, prose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenPromptOptions:
    """The operator's options for the examination."""

    prompts: tuple[str, ...] = PROMPTS
    own: bool = False  # the prompts are the operator's, and warm new servers up too
    command: tuple[
        str, ...
    ] = ()  # run as well, with {green} and {blue} for their URLs; exit status 0: passed
    always: bool = False  # examine every change, not only those that may alter answers
    at_most_s: float = 600.0
    prefixes: tuple[SharedPrefix, ...] = ()  # of clients' prompts, for the caches of new servers
