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


def test_requests_by_status_and_how_long_they_took():
    metrics = Metrics()
    metrics.requests.labels("jvp", "seed-gru", 200).inc()
    metrics.request_seconds.labels("jvp", "seed-gru").observe(0.004)
    lines = metrics.page().decode().splitlines()
    assert 'pushforward_requests_total{model="seed-gru",operator="jvp",status="200"} 1.0' in lines
    assert 'pushforward_request_seconds_bucket{le="0.0025",model="seed-gru",operator="jvp"} 0.0' in lines
    assert 'pushforward_request_seconds_bucket{le="0.005",model="seed-gru",operator="jvp"} 1.0' in lines


def test_what_others_keep_is_read_for_each_page():
    metrics, numbers = Metrics(), iter((3, 4))
    metrics.watch("queue_length", "How many wait.", lambda: next(numbers))
    assert [b"pushforward_queue_length %d.0" % n in metrics.page() for n in (3, 4)] == [True, True]
