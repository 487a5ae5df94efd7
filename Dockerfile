# The server, for CPUs by default and for NVIDIA's GPUs with --build-arg DEVICE=gpu; `make image-check` tries it.

# Debian itself instead of an image of Python: its Python gets security fixes, and its packages alone make it anew.
ARG BASE=docker.io/library/debian:trixie-20260918-slim@sha256:a99cfc517144bc59b1978475ec53b46ecabec7e43635402ee5b77cc54cd1b20a
ARG DEVICE=cpu

# hadolint ignore=DL3006
FROM ${BASE} AS python
# Debian's mirrors drop a version as soon as there is a fix for it, so a pinned one could not be built for long.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 \
    && rm -rf /var/lib/apt/lists/* /var/cache/* /var/log/*


FROM python AS tools
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends binutils python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/tools \
    && python3 -m venv --without-pip /opt/pushforward
ENV PATH=/opt/pushforward/bin:$PATH


FROM tools AS environment
ARG DEVICE
COPY requirements/image-${DEVICE}.txt /tmp/requirements.txt
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/tools/bin/pip --python /opt/pushforward/bin/python install --no-compile --no-deps --require-hashes \
        -r /tmp/requirements.txt

# What no server needs: headers for building against TensorFlow, clang (a requirement that TensorFlow's Python never
# imports), tests, and symbols for debuggers. Only TensorFlow's libraries are stripped: others were edited after linking.
# Bytecode comes from one import of everything, since most modules are never imported, and a read-only root takes none.
WORKDIR /opt/pushforward/lib/python3.13/site-packages
RUN rm -r tensorflow/include clang \
    && find numpy h5py -type d -name tests -prune -exec rm -r {} + \
    && find tensorflow -name '*.so*' -type f -exec strip --strip-unneeded {} +
RUN TF_CPP_MIN_LOG_LEVEL=3 python -c "import fastapi, h5py, httptools, httpx2, keras, orjson, prometheus_client, \
    pybase64, pydantic_settings, tensorflow, threadpoolctl, uvicorn, uvloop"


FROM python AS server
LABEL org.opencontainers.image.title="Pushforward" \
      org.opencontainers.image.description="Derivatives of recurrent Keras models over HTTP" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="docker.io/library/debian:trixie-slim"
RUN groupadd --gid 10001 pushforward \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin pushforward \
    && install --directory --owner=10001 --group=10001 /models /cache

COPY --from=environment /opt/pushforward /opt/pushforward
WORKDIR /srv/pushforward
COPY LICENSE ./
COPY pushforward pushforward
COPY models models
COPY app app
RUN python3 -m compileall -q .

# What writes into a home finds /tmp, the one place besides the volumes that has to be writable.
ENV PATH=/opt/pushforward/bin:$PATH \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    PUSHFORWARD_HOST=0.0.0.0 \
    PUSHFORWARD_MODEL_DIR=/models
USER 10001:10001
VOLUME ["/models", "/cache"]
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=180s --retries=3 CMD ["python", "-m", "app.health"]
CMD ["python", "-m", "app"]

# Last, since they differ from build to build.
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
