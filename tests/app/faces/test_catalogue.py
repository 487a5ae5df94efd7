def test_models(shell):
    assert shell.get("/models").json() == [{"name": "echo", "version": 1}]


def test_model(shell):
    model = shell.get("/models/echo").json()
    assert model == shell.get("/models/echo@1").json()
    assert model["inputs"][0]["shape"] == [None, None, 1]
    assert model["strategies"] == ["scan"]


def test_unknown_model(shell):
    response = shell.get("/models/none-such")
    assert response.status_code == 404
    assert response.json()["type"] == "/problems/unknown-model"


def test_metrics(shell):
    response = shell.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=")
    assert response.text == "# no counters\n"
