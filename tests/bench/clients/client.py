"""Threads that chat through one client library until standard input ends; run by its own Python.

Prints a line of JSON for each request. Nothing of caovan is imported: clients have none of it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

PAUSE_S = 0.2
TIMEOUT_S = 300.0
TOKENS = 100
stop = threading.Event()
printing = threading.Lock()

Chat = Callable[[str], Iterator[tuple[str, str]]]
"""Pieces of the answer to a text, each with the reason of the answer's end if it is there."""


def openai_chat(url: str, model: str) -> Chat:
    """The openai library, streamed."""
    import openai  # noqa: PLC0415  (each process imports one library)

    client = openai.OpenAI(base_url=f"{url}v1", api_key="none", timeout=TIMEOUT_S)

    def chat(text: str) -> Iterator[tuple[str, str]]:
        messages: Any = [{"role": "user", "content": text}]
        for chunk in client.chat.completions.create(
            model=model, messages=messages, stream=True, max_tokens=TOKENS, temperature=0
        ):
            for choice in chunk.choices:
                yield choice.delta.content or "", choice.finish_reason or ""

    return chat


def plain_chat(url: str, model: str) -> Chat:
    """The openai library, whole answers."""
    import openai  # noqa: PLC0415

    client = openai.OpenAI(base_url=f"{url}v1", api_key="none", timeout=TIMEOUT_S)

    def chat(text: str) -> Iterator[tuple[str, str]]:
        messages: Any = [{"role": "user", "content": text}]
        (choice,) = client.chat.completions.create(
            model=model, messages=messages, max_tokens=TOKENS, temperature=0
        ).choices
        yield choice.message.content or "", choice.finish_reason

    return chat


def anthropic_chat(url: str, model: str) -> Chat:
    """The anthropic library, streamed."""
    import anthropic  # noqa: PLC0415

    client = anthropic.Anthropic(base_url=url, api_key="none", timeout=TIMEOUT_S)

    def chat(text: str) -> Iterator[tuple[str, str]]:
        messages: Any = [{"role": "user", "content": text}]
        for event in client.messages.create(
            model=model,
            messages=messages,
            stream=True,
            max_tokens=TOKENS,
            extra_body={"temperature": 0},
        ):
            if event.type == "content_block_delta":
                yield getattr(event.delta, "text", ""), ""
            else:
                end = event.delta.stop_reason if event.type == "message_delta" else None
                yield "", end or ""

    return chat


def litellm_chat(url: str, model: str) -> Chat:
    """litellm, streamed."""
    import litellm  # noqa: PLC0415

    litellm.suppress_debug_info = True

    def chat(text: str) -> Iterator[tuple[str, str]]:
        for chunk in litellm.completion(
            model=f"openai/{model}",
            api_base=f"{url}v1",
            api_key="none",
            messages=[{"role": "user", "content": text}],
            stream=True,
            max_tokens=TOKENS,
            temperature=0,
            timeout=TIMEOUT_S,
        ):
            for choice in chunk.choices:
                yield choice.delta.content or "", choice.finish_reason or ""

    return chat


def langchain_chat(url: str, model: str) -> Chat:
    """langchain-openai, streamed."""
    from langchain_openai import ChatOpenAI  # noqa: PLC0415

    made: Any = ChatOpenAI
    client = made(
        base_url=f"{url}v1",
        api_key="none",
        model=model,
        max_tokens=TOKENS,
        temperature=0,
        timeout=TIMEOUT_S,
    )

    def chat(text: str) -> Iterator[tuple[str, str]]:
        for chunk in client.stream(text):
            yield str(chunk.content), chunk.response_metadata.get("finish_reason", "")

    return chat


LIBRARIES = {
    "openai": openai_chat,
    "openai, whole": plain_chat,
    "anthropic": anthropic_chat,
    "litellm": litellm_chat,
    "langchain": langchain_chat,
}


def work(library: str, chat: Chat, thread: int) -> None:
    """Send one request after the other."""
    number = 0
    while not stop.wait(PAUSE_S):
        number += 1
        row: dict[str, Any] = {"library": library, "began": time.time(), "text": "", "end": ""}
        row["begun"] = False
        try:
            # Each is another request: one that an engine may have died of would be tried alone.
            for piece, end in chat(f"{library} {os.getpid()} {thread} {number}"):
                row["begun"] = True  # perhaps with an event that has no text
                row["text"] += piece
                row["end"] = end or row["end"]
        except Exception as problem:  # which class it is, is measured
            kind = type(problem)
            row["error"] = f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
            row["says"] = str(problem)[:300]
        row["ended"] = time.time()
        with printing:
            print(json.dumps(row), flush=True)


def main() -> None:
    """Chat until standard input ends."""
    library, url, model, count = sys.argv[1:]
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it asks the network otherwise
    chat = LIBRARIES[library](url, model)
    threads = [
        threading.Thread(target=work, args=(library, chat, number)) for number in range(int(count))
    ]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    stop.set()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
