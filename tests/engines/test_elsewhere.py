"""Logs from systems without packages of the engine, and requests that a serving engine refused."""

from __future__ import annotations

import pytest

from caovand.engines.writer import answer_for, explain_log

BUILD = "      AssertionError: CUDA_HOME is not set\n"
MAC = '        File "/Users/user/venv/lib/python3.10/site-packages/pip/__init__.py", line 3\n'
WINDOWS = '        File "C:\\Users\\user\\venv\\lib\\site-packages\\pip\\__init__.py", line 3\n'
LINUX = '        File "/opt/venv/lib/python3.10/site-packages/pip/__init__.py", line 3\n'


def first_advice(text: str) -> str:
    found = explain_log(text)
    assert found is not None
    return found[1].advice[0]


@pytest.mark.parametrize(
    ("paths", "first"),
    [(MAC, "from macOS"), (WINDOWS, "WSL2"), (LINUX, "pip found no finished package")],
)
def test_a_failed_build_names_the_system_it_cannot_work_on(paths: str, first: str) -> None:
    assert first in first_advice(paths + BUILD)


def test_a_named_engine_stands_in_the_advice_of_its_system() -> None:
    text = f"Collecting vllm==0.2.3\n{MAC}{BUILD}"
    assert "vLLM needs it to be installed" in first_advice(text)


@pytest.mark.parametrize(
    "text",
    [
        f"Building wheel for llama-cpp-python (pyproject.toml) error\n{WINDOWS}",
        f"{MAC}ValueError: Model architectures ['A'] are not supported for now. vllm\n",
    ],
)
def test_the_system_is_not_to_blame_for_what_fails_on_any(text: str) -> None:
    assert "These lines are from" not in first_advice(text)


TAKEN = "Error: listen tcp 127.0.0.1:11434: bind: address already in use\n"
REFUSED = "TypeError: fetch failed\n  cause: Error: connect ECONNREFUSED 127.0.0.1:11434\n"


@pytest.mark.parametrize(
    ("text", "has", "lacks"),
    [
        (f"ollama@MacBook-Pro ~ % ollama serve\n{TAKEN}", "lsof -nP -iTCP:11434", "systemctl"),
        (
            "Error: listen tcp 127.0.0.1:11434: bind: Only one usage of each socket address "
            "(protocol/network address/port) is normally permitted.\n",
            "findstr :11434",
            "ss -l",
        ),
        (
            "PS E:\\> ollama list\n"
            'Error: Head "http://127.0.0.1:11434/": read tcp 127.0.0.1:11114->127.0.0.1:11434: '
            "wsarecv: An existing connection was forcibly closed by the remote host.\n",
            "portproxy",
            "systemctl",
        ),
        (f"at /Users/user/app/index.js\n{REFUSED}", "its app, or `ollama serve`", "systemctl"),
        (f"at /srv/app/index.js\n{REFUSED}", "systemctl start", "its app"),
        (f"user@host:~$ ollama serve\n{TAKEN}", "ss -ltnp", "lsof"),
    ],
)
def test_commands_are_those_of_the_system_that_the_lines_are_from(
    text: str, has: str, lacks: str
) -> None:
    assert has in first_advice(text)
    assert lacks not in first_advice(text)


@pytest.mark.parametrize(
    "text",
    [
        "ollama run tinyllama\nggml_metal_init: error: failed to initialize the Metal library\n",
        "llama_model_load: x\nggml_metal_init: error: failed to initialize the Metal library\n",
        "Error: ollama: the model requires MLX support\n",
    ],
)
def test_no_setting_of_the_engine_helps_where_a_mac_lacks_kernels(text: str) -> None:
    found = explain_log(text)
    assert found is not None
    writer, explanation = found
    assert explanation.finding is not None
    answer = answer_for(writer, explanation.finding, None)
    assert answer.heals == "no"
    assert not any("CUDA_VISIBLE_DEVICES" in text for text in explanation.advice)


def test_a_name_that_is_not_served_explains_the_log_of_a_server_that_goes_on() -> None:
    found = explain_log(
        "INFO:     Uvicorn running on http://0.0.0.0:8000 (Press CTRL+C to quit)\n"
        "ERROR 08-12 11:47:01 serving_chat.py:112] Error with model object='error' "
        "message='The model `other` does not exist.' type='NotFoundError' param=None code=404\n"
    )
    assert found is not None
    writer, explanation = found
    assert explanation.finding is not None
    assert explanation.finding.signature == "client.model"
    answer = answer_for(writer, explanation.finding, None)
    assert (answer.certainty, answer.heals) == ("certain", "no")


def test_a_prompt_that_quotes_such_a_line_is_no_refusal() -> None:
    found = explain_log(
        "INFO:     Uvicorn running on http://0.0.0.0:8000 (Press CTRL+C to quit)\n"
        "INFO 08-12 11:47:01 serving_chat.py:112] The model `other` does not exist.\n"
    )
    assert found is not None
    assert found[1].finding is None


def test_an_allocation_in_a_model_s_constructor_is_of_its_weights() -> None:
    found = explain_log(
        'ERROR 05-13 21:09:41 [core.py:396]   File "/opt/env/lib/python3.12/site-packages/vllm/'
        'model_executor/layers/linear.py", line 459, in __init__\n'
        "ERROR 05-13 21:09:41 [core.py:396] torch.OutOfMemoryError: CUDA out of memory. Tried to "
        "allocate 1.02 GiB.\n"
    )
    assert found is not None
    assert found[1].finding is not None
    assert found[1].finding.phase == "load"


def test_a_measured_step_that_does_not_fit_is_told_by_the_frames() -> None:
    found = explain_log(
        "INFO 12-06 14:02:10 llm_engine.py:73] Initializing an LLM engine with config: model='m'\n"
        "Traceback (most recent call last):\n"
        '  File "/opt/env/lib/python3.10/site-packages/vllm/worker/worker.py", line 92, in '
        "profile_num_available_blocks\n"
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.50 GiB.\n"
    )
    assert found is not None
    assert "Lower --max-model-len" in found[1].advice[0]


@pytest.mark.parametrize(
    ("prompt", "first"),
    [
        ("D:\\ai\\deploy>docker-compose up -d", "WSL 2 engine"),
        ("user@MacBook-Pro deploy % docker compose up", "no card to pass"),
        ("user@server:~$ docker compose up", "nvidia-ctk runtime configure"),
    ],
)
def test_a_container_without_a_card_is_helped_on_its_own_system(prompt: str, first: str) -> None:
    refused = "Error response from daemon: unknown or invalid runtime name: nvidia"
    assert first in first_advice(f"{prompt}\n{refused}\n")
