"""The command that watches a run: once, live, and in the browser."""

import io
import threading
import urllib.error
import urllib.request

import pytest
from rich.console import Console

from experiments import watch
from jaxrl.errors import UsageError
from tests.analysis.run_folders import write_run


def call(*arguments, terminal=False):
    console = Console(width=120, height=40, force_terminal=terminal, file=io.StringIO())
    return watch.main([str(word) for word in arguments], console), console.file.getvalue()


@pytest.fixture
def served(tmp_path):
    path = write_run(tmp_path / "a", [1.0, 2.0], finished=False, planned=200)
    server = watch.open_server(path, 0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield path, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def get(url, **headers):
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=20) as answer:
        return answer.read().decode()


def test_once_prints_what_there_is(tmp_path):
    members = [{"seed": s, "learning_rate": 0.1 * (s + 1)} for s in range(2)]
    path = write_run(tmp_path / "a", [1.0, 2.0, 3.0], members=members, extra={"critic/loss": 0.5})
    status, text = call(path, "--once")
    assert status == 0
    for words in ("finished", "200 of 200 steps", "2 members", "eval/return", "critic/loss", "learning rate 0.2", "⣀"):
        assert words in text


def test_a_run_without_rows_and_a_broken_one(tmp_path):
    path = write_run(tmp_path / "a", ["nan", "nan"], finished=False, planned=500)
    assert "not finite" in call(path, "--once")[1]
    (path / "metrics.jsonl").write_bytes(b'{"st')
    text = call(path, "--once")[1]
    assert "waiting" in text and "half-written" in text


def test_a_terminal_is_followed_until_the_run_is_over(tmp_path, monkeypatch):
    path = write_run(tmp_path / "a", [1.0, 2.0], finished=False, planned=200)
    looks = []

    def sleep(seconds):
        looks.append(seconds)
        with (path / "metrics.jsonl").open("a") as file:
            file.write('{"step": 200, "member": 0, "eval/return": 77.0}\n')
        if len(looks) == 2:
            (path / "result.json").write_text("{}")

    monkeypatch.setattr(watch.time, "sleep", sleep)
    status, text = call(path, "--every", "0.5", terminal=True)
    assert status == 0 and looks == [0.5, 0.5]
    assert "77" in text and "finished" in text


def test_ctrl_c_ends_it(tmp_path, monkeypatch):
    path = write_run(tmp_path / "a", [1.0], finished=False, planned=200)

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(watch.time, "sleep", interrupt)
    assert call(path, terminal=True)[0] == 0


def test_the_page_follows_the_run_folder(served):
    path, url = served
    assert "<svg" in get(url) and "http" not in get(url).replace("http-equiv", "")
    assert "100 <small>of 200</small>" in get(f"{url}/fragment")
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 200, "member": 0, "eval/return": 3.0}\n')
    (path / "result.json").write_text("{}")
    assert "Finished" in get(f"{url}/fragment?x=1")


def test_the_server_answers_this_machine_alone_and_nothing_else(served):
    _, url = served
    for address, headers, code in (
        (f"{url}/config.json", {}, 404),
        (f"{url}/../../etc/passwd", {}, 404),
        (url, {"Host": "elsewhere.example:80"}, 403),
    ):
        with pytest.raises(urllib.error.HTTPError) as error:
            get(address, **headers)
        assert error.value.code == code


def test_refusals(tmp_path, served):
    path, url = served
    with pytest.raises(UsageError, match="cannot be had"):
        call(path, "--serve", url.rpartition(":")[2])
    with pytest.raises(UsageError, match="every 0"):
        call(path, "--every", "0")
    with pytest.raises(UsageError, match="does not exist"):
        call(tmp_path / "none")
