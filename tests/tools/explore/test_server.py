"""The server of the explorer: who is answered, what is compiled again, and what becomes of an edited level."""

from __future__ import annotations

import http.client
import importlib.machinery
import json
import threading

import pytest
import torch

from stepwell.errors import StepwellError
from stepwell.tools.explore.compare import compare
from stepwell.tools.explore.errors import ExploreError
from stepwell.tools.explore.main import explore, main
from stepwell.tools.explore.page import component, html
from stepwell.tools.explore.server import worker
from stepwell.tools.explore.server.http import ADDRESS, MAX_BODY_BYTES, TOKEN_HEADER, Server
from stepwell.tools.explore.server.messages import message_of
from stepwell.tools.explore.server.session import Session, text_of
from stepwell.tools.opt.verify_results import ResultVerifier


@pytest.fixture(scope="module")
def session(scores, programs):
    fn, *args = programs.scores_case()

    def again(options, measure):
        torch._dynamo.reset()
        return explore(fn, *args, options=options, measure=measure)

    return Session(scores, again)


@pytest.fixture(scope="module")
def server(session):
    with Server(session) as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def asked(server, method="POST", path="/api/check", body=None, **headers):
    """Status and body of an answer. A header of None is left out."""
    given = {"Host": f"{ADDRESS}:{server.port}", TOKEN_HEADER: server.token, "Content-Type": "application/json"}
    given.update({name.replace("_", "-"): value for name, value in headers.items()})
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    if method == "POST":
        given.setdefault("Content-Length", str(len(data)))
    connection = http.client.HTTPConnection(ADDRESS, server.port, timeout=300)
    try:
        connection.putrequest(method, path, skip_host=True)
        for name, value in given.items():
            if value is not None:
                connection.putheader(name, value)
        connection.endheaders(data if method == "POST" else None)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def level(scores, name, graph=0):
    found = next(one for one in scores.data["graphs"][graph]["levels"] if one["name"] == name)
    return scores.data["texts"][found["text"]]


def request(scores, name, text=None, graph=0):
    return {"graph": graph, "level": name, "text": level(scores, name, graph) if text is None else text}


def test_it_listens_on_this_machine_alone_with_a_token_of_its_own(server, session):
    assert server.server_address[0] == "127.0.0.1" and server.port > 0
    with Server(session) as other:
        assert other.token != server.token and len(other.token) >= 32 and other.port != server.port
        with pytest.raises(ExploreError, match=f"cannot listen on port {other.port}: Address already in use"):
            Server(session, other.port)


def test_the_page_is_for_who_has_the_token(server):
    assert asked(server, "GET", f"/?token={server.token}")[0] == 200
    for path in ("/", "/?token=", "/?token=wrong", f"/?token={server.token}x"):
        status, said = asked(server, "GET", path)
        assert status == 403 and "token is wrong" in said and server.token not in said
    assert asked(server, "GET", f"/etc/passwd?token={server.token}")[0] == 404


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({TOKEN_HEADER: "wrong"}, "token is wrong"),
        ({TOKEN_HEADER: None}, "token is wrong"),
        ({"Host": "evil.example"}, "host is another"),
        ({"Host": "127.0.0.1"}, "host is another"),
        ({"Host": None}, "host is another"),
        ({"Origin": "http://evil.example"}, "another origin"),
        ({"Origin": "null"}, "another origin"),
        ({"Sec-Fetch-Site": "cross-site"}, "another origin"),
    ],
)
def test_others_are_refused(server, scores, headers, said):
    status, answer = asked(server, body=request(scores, "loop"), **headers)
    assert status == 403 and said in answer


def test_a_page_that_is_closed_is_no_failure(server, capsys):
    for error, said in ((BrokenPipeError(), ""), (ValueError("a fault of ours"), "a fault of ours")):
        try:
            raise error
        except Exception:
            server.handle_error(None, (ADDRESS, 1))
        assert said in capsys.readouterr().err if said else capsys.readouterr().err == ""


def test_requests_that_are_none(server):
    assert asked(server, path="/api/close", body={})[0] == 404
    assert asked(server, body=b"[]")[0] == 400
    assert asked(server, body=b"{")[0] == 400
    assert asked(server, body=b"", Content_Length=str(MAX_BODY_BYTES + 1))[0] == 413
    status, said = asked(server, body={"graph": 7, "level": "loop", "text": ""})
    assert status == 422 and "there is no graph 7" in said
    status, said = asked(server, body={"graph": 0, "level": "asm", "text": ""})
    assert status == 422 and "there is no level 'asm' that can be run" in said
    assert asked(server, path="/api/rerun", body={"options": {"debug": "/tmp/x"}})[0] == 422
    assert asked(server, path="/api/results", body={"graph": 7})[0] == 422


def test_a_mistake_is_told_at_its_line(server, scores):
    text = level(scores, "loop").replace("arith.addf", "arith.addff", 1)
    line = next(k for k, one in enumerate(text.splitlines(), 1) if "addff" in one)
    status, answer = asked(server, body=request(scores, "loop", text))
    (error,) = json.loads(answer)["errors"]
    assert status == 200 and error["line"] == line and "did you mean 'arith.addf'" in error["message"]
    assert json.loads(asked(server, body=request(scores, "loop"))[1]) == {"errors": []}


def test_a_mistake_that_the_verifier_finds_has_its_line_too(server, scores):
    text = level(scores, "nd").replace("nd.matmul", "nd.mul", 1)
    (error,) = json.loads(asked(server, body=request(scores, "nd", text))[1])["errors"]
    assert "nd.mul" in text.splitlines()[error["line"] - 1]


@pytest.mark.long
@pytest.mark.parametrize("name", ["import", "nd", "loop", "mem", "cpu", "host"])
def test_every_level_runs_as_it_is(session, scores, name):
    found = session.run(request(scores, name))
    assert {one["difference"] for one in found["results"]} == {""} and found["us"] > 0 and found["base_us"] > 0
    assert found["command"] == f"opt-tool {found['file']} --run"


def test_an_edited_constant_changes_the_results(session, scores):
    text = level(scores, "loop").replace("5.000000e-01", "7.500000e-01")
    found = session.run(request(scores, "loop", text))
    assert any("elements differ" in one["difference"] for one in found["results"])
    assert found["text"] == text


@pytest.mark.long
def test_what_is_not_run_says_why(session, scores):
    assert session.run(request(scores, "loop", "builtin.module {"))["errors"][0]["line"] == 1
    other = "builtin.module { func.func @forward(%x: !nd.tensor<2 x f32>) -> !nd.tensor<2 x f32> { func.return %x : !nd.tensor<2 x f32> } }"
    assert session.run(request(scores, "nd", other))["errors"]


@pytest.mark.long
def test_an_edited_level_is_compiled_from_there(session, scores):
    text = level(scores, "loop").replace("5.000000e-01", "7.500000e-01")
    data = session.lower(request(scores, "loop", text))["document"]
    (graph,) = data["graphs"]
    assert [one["name"] for one in graph["levels"]] == ["import", "loop", "mem", "cpu", "host", "llvm", "asm"]
    assert "7.500000e-01" in text_of(data, 0, "cpu")


@pytest.mark.long
def test_a_fusion_that_is_forbidden_changes_nests_and_not_results(session, scores):
    found = session.rerun({"options": {"no_fuse": ["gelu"]}})
    first = found["comparison"][0]
    assert [(one["text"], one["granted"]) for one in first["directives"]] == [("no_fuse 'gelu'", True)]
    assert first["steps"][1] > first["steps"][0] and first["bytes"][1] > first["bytes"][0] and first["only_after"]
    assert any(pair.startswith("gelu") for pair in first["parted"])
    for run in [session.results({"graph": k})["run"] for k in range(len(found["comparison"]))]:
        assert {one["difference"] for one in run["results"]} == {""} and run["us"] > 0
    assert found["document"]["call"]["options"]["no_fuse"] == ["gelu"]
    assert scores.data["call"]["options"].get("no_fuse") is None


@pytest.mark.long
def test_a_pass_is_switched_off_or_there_is_none(session):
    found = session.rerun({"options": {"disable_passes": ["loop-fuse"]}})
    assert all(one["name"] != "loop-fuse" for graph in found["document"]["graphs"] for one in graph["passes"])
    with pytest.raises(StepwellError, match="there is no pass 'loop-fues'; did you mean 'loop-fuse'"):
        session.rerun({"options": {"disable_passes": ["loop-fues"]}})
    with pytest.raises(ExploreError, match="only disable_passes, no_fuse, fuse, tile, loop_order can be set"):
        session.rerun({"options": {"passes": {}}})


def test_a_rerun_can_be_asked_for_the_comparison_alone(scores, programs):
    found = Session(scores, lambda options, measure: scores).rerun({"document": False})
    assert list(found) == ["comparison"]


def test_a_program_as_it_was_is_run_once(monkeypatch):
    """Edited again and again, and the same text on a GPU not even once more."""
    runs = []
    results = ResultVerifier.results
    monkeypatch.setattr(ResultVerifier, "results", lambda self, *given, **named: runs.append(1) or results(self, *given, **named))
    worker._base.cache_clear()
    edited = {"text": ND.replace("nd.exp", "nd.tanh"), "base": ND, "file": "nd"}
    for request, count in ((edited, 2), (edited, 3), ({**edited, "text": ND}, 3)):
        assert worker.answer(request)["results"]
        assert len(runs) == count


def test_a_document_is_like_itself(scores):
    for one in compare(scores.data, scores.data):
        assert one["bytes"][0] == one["bytes"][1] > 0 and not one["only_before"] and not one["only_after"]


HOST = """builtin.module attributes {stepwell.machine = #stepwell.machine<"sm_90">} {
  host.program @forward(%x: !host.tensor<f32, "cuda:0">) {
    host.check %x [4] strides [1] "argument 0 (x)" : !host.tensor<f32, "cuda:0">
    host.return(%x : !host.tensor<f32, "cuda:0">) [arg(0)]
  }
}"""
ND = """builtin.module attributes {stepwell.machine = #stepwell.machine<"sm_90">} {
  func.func @forward(%x: !nd.tensor<4 x f32, "cuda:0">) -> !nd.tensor<4 x f32, "cuda:0"> {
    %y = nd.exp %x : !nd.tensor<4 x f32, "cuda:0">
    func.return %y : !nd.tensor<4 x f32, "cuda:0">
  }
}"""


def test_programs_of_a_gpu_are_interpreted_at_the_level_tt():
    """Where there is no GPU, too."""
    found = worker.answer({"text": ND.replace("nd.exp", "nd.tanh"), "base": ND, "file": "nd"})
    assert [one["name"] for one in found["results"] if "elements differ" in one["difference"]] == ["result 0"] and "us" not in found
    (error,) = worker.answer({"text": HOST, "base": HOST, "file": "host"})["errors"]
    assert "runs on it alone: edit the level tt" in error["message"]


def test_a_message_of_another_error_has_no_line():
    assert message_of(ValueError()) == {"line": 0, "column": 0, "message": "ValueError"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--serve"], "--serve compiles again"),
        (["--about", "x", "--no-fuse", "x"], "is compiled again: give the program"),
        (["--about", "x", "--measure"], "is compiled again: give the program"),
        ([], "say what to do with the document: --html FILE"),
    ],
)
def test_what_a_document_is_not_good_for(arguments, said, capsys):
    with pytest.raises(SystemExit):
        main(["out.json", *arguments])
    assert said in capsys.readouterr().err


@pytest.mark.long
def test_the_page_reruns_and_edits(server, browser, scores, monkeypatch):
    """In the browser: a fusion is forbidden, a constant is edited, an operation is broken."""
    monkeypatch.setattr(html, "component", lambda: ("", ""))
    browser.open(server.url)
    browser.value("document.getElementById('tab-plan').click()")
    browser.value("[...document.querySelectorAll('.plan button.small')].find(b => b.textContent === 'keep apart').click()")
    assert browser.value("document.querySelector('.chips').textContent").startswith("keep apart: ")
    browser.value("[...document.querySelectorAll('button')].find(b => b.textContent === 'Compile again').click()")
    table = "document.querySelector('.said table')?.textContent ?? ''"
    browser.until(f"({table}).split('the same').length === 3")
    assert "granted, kept apart" in browser.value("document.querySelector('.said').textContent")
    browser.value("[...document.querySelectorAll('button')].find(b => b.textContent === 'show the first one').click()")
    browser.value("[...document.querySelectorAll('button')].find(b => b.textContent === 'Switch off each pass in turn').click()")
    rows = "[...document.querySelectorAll('.said tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
    (first, second, *_) = browser.until(f"({rows}).length >= 2 && {rows}")
    browser.value("[...document.querySelectorAll('button')].find(b => b.textContent === 'Stop').click()")
    assert first[0] != second[0] and all(row[-1] == "the same" and "KiB" in row[2] for row in (first, second))
    browser.until("[...document.querySelectorAll('button')].some(b => b.textContent === 'Switch off each pass in turn')")
    area = "document.querySelector('.editor textarea')"
    for old, new in (("arith.mulf", "arith.mulff"), ("arith.mulff", "arith.mulf")):
        browser.value(f"{area}.value = {area}.value.replace('{old}', '{new}'); {area}.dispatchEvent(new Event('input'))")
        wrong = "document.querySelector('.mistake').hidden"
        browser.until(f"!{wrong}" if new == "arith.mulff" else wrong)
        if new == "arith.mulff":
            assert "did you mean 'arith.mulf'" in browser.value("document.querySelector('.mistake').textContent")
    browser.value(f"{area}.value = {area}.value.replaceAll('5.000000e-01', '7.500000e-01')")
    browser.value("[...document.querySelectorAll('button')].find(b => b.textContent === 'Run').click()")
    text = "document.querySelector('.editor + .said').textContent"
    said = browser.until(f"{text}.includes('opt-tool') && {text}")
    assert "elements differ" in said and "opt-tool edited_loop.mlir --run" in said and "a call" in said
    assert browser.errors() == []
    assert all(url.startswith((f"http://{ADDRESS}:{server.port}/", "blob:")) for url in browser.requests())


@pytest.mark.long
@pytest.mark.skipif(component.component() == ("", ""), reason="nbclassic, which brings CodeMirror, is not installed")
def test_codemirror_colours_folds_and_shows_a_mistake_at_its_line(server, browser):
    browser.open(server.url)
    browser.value("document.getElementById('tab-run').click()")
    view = "document.querySelector('.CodeMirror').CodeMirror"
    browser.until("document.querySelectorAll('.CodeMirror .cm-t-name-variable').length > 0")
    browser.until("document.querySelectorAll('.CodeMirror-foldgutter-open').length > 0")
    line = f"{view}.getValue().split('\\n').findIndex((one) => one.includes('arith.mulf'))"
    browser.value(f"(line => {view}.replaceRange('?', {{line, ch: {view}.getLine(line).length}}, undefined, '+input'))({line})")
    assert browser.until("document.querySelector('.mistake.inline')?.textContent").startswith("line ")
    browser.value(f"{view}.undo()")
    browser.until("!document.querySelector('.mistake.inline')")
    assert browser.errors() == []


def test_the_component_is_read_from_its_package(tmp_path, monkeypatch):
    for name in (*component.STYLES, *component.SCRIPTS):
        file = tmp_path / "nbclassic/static/components/codemirror" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"/* {name} */</script>")
    (tmp_path / "nbclassic/__init__.py").write_text("raise ImportError('it is not imported')")
    monkeypatch.setattr(component, "find_spec", lambda name: importlib.machinery.PathFinder.find_spec(name, [str(tmp_path)]))
    styles, scripts = component.component()
    assert styles.startswith("/* lib/codemirror.css */") and scripts.count("/*") == len(component.SCRIPTS)
    served = html.page("{}", "f", token="t")
    assert "/* lib/codemirror.js */<\\/script>" in served and "/* lib/codemirror.js */" not in html.page("{}", "f")
    (tmp_path / "nbclassic/static/components/codemirror/lib/codemirror.js").unlink()
    assert component.component() == ("", "")
