from app.metrics import Metrics


def test_counts_by_operator_and_model():
    metrics = Metrics()
    metrics.chunks.labels("jacobian", "seed-gru").inc()
    metrics.chunks.labels("jacobian", "seed-gru").inc()
    metrics.abandoned.labels("jacobian", "bi-gru").inc()
    lines = metrics.page().decode().splitlines()
    assert 'pushforward_chunks_total{model="seed-gru",operator="jacobian"} 2.0' in lines
    assert 'pushforward_abandoned_total{model="bi-gru",operator="jacobian"} 1.0' in lines


def test_two_in_a_process_do_not_mix():
    first, second = Metrics(), Metrics()
    first.chunks.labels("jacobian", "seed-gru").inc()
    assert b"seed-gru" not in second.page()
