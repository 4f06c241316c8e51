"""A conversation as chat keeps it: what was said, and the commands that change it. No input, no output."""

from dataclasses import dataclass, field
from typing import Literal

from headway.cli.answers import Message

HELP = """/exit          leave (also Ctrl-D)
/reset         forget what was said
/system TEXT   tell the model how to answer, and forget what was said; without TEXT: remove it
/help          this list
Ctrl-C stops an answer."""


@dataclass(slots=True)
class Conversation:
    """The messages so far. A question that got no answer is taken back."""

    system: str = ""
    turns: list[Message] = field(default_factory=list)

    def messages(self, question: str) -> tuple[Message, ...]:
        """What to send for a new question."""
        system = ({"role": "system", "content": self.system},) if self.system else ()
        return (*system, *self.turns, {"role": "user", "content": question})

    def add(self, question: str, answer: str) -> None:
        """Keeps a turn. An answer that was stopped before its first word is none."""
        if answer:
            self.turns += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]

    def command(self, line: str) -> tuple[Literal["exit", "go on"], str]:
        """Does what a line that begins with / says; returns whether to leave, and what to tell."""
        name, _, text = line.strip().partition(" ")
        match name:
            case "/exit" | "/quit" | "/bye":
                return "exit", ""
            case "/reset" | "/clear":
                self.turns.clear()
                return "go on", "(forgotten)"
            case "/system":
                self.system = text.strip()
                self.turns.clear()
                return "go on", "(set; what was said is forgotten)" if self.system else "(removed)"
            case "/help" | "/?":
                return "go on", HELP
            case _:
                return "go on", f"{name} is no command:\n{HELP}"
