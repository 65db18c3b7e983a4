# mrp-serve, for a laptop, for `ray up` and for KubeRay (docs/deploy.md).
#
#   docker build --build-arg TORCH_INDEX=ADDRESS -t mrp-serve:cpu .     small; ADDRESS: PyTorch's index of CPU wheels ("Start Locally")
#   docker build --build-arg DEVICE=cuda -t mrp-serve:cuda .            the default wheels, which bring CUDA along
#
#   docker run --init -p 127.0.0.1:8000:8000 mrp-serve:cpu --model X    or `serve X`, `check X`, `bash` (deploy/entrypoint.sh)
#
# For a build that can be repeated: --build-arg PYTHON_IMAGE=python:3.11-slim@sha256:… (docs/deploy.md#the-image).
# tests/deploy/test_image.py runs the install steps of this file in an empty environment.

ARG PYTHON_IMAGE=python:3.11-slim
FROM ${PYTHON_IMAGE} AS build

ARG DEVICE=cpu
ARG TORCH_INDEX=""
ARG EXTRA_PACKAGES=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
WORKDIR /src

RUN python -m venv /opt/mrp-serve
ENV PATH=/opt/mrp-serve/bin:$PATH

# torch alone first: it is most of the image and changes least. TORCH_INDEX gives this one package. What came is checked,
# since pip takes whatever build of the version the index has.
COPY constraints.txt ./
RUN if [ -n "$TORCH_INDEX" ]; then PIP_INDEX_URL="$TORCH_INDEX" pip install --no-deps -c constraints.txt torch; fi \
    && pip install -c constraints.txt torch
RUN case "$DEVICE" in \
      cpu) python -c 'import torch; assert torch.version.cuda is None, "a CUDA build of torch came: set TORCH_INDEX"' ;; \
      cuda) python -c 'import torch; assert torch.version.cuda, "a CPU build of torch came: leave TORCH_INDEX out"' ;; \
      *) echo "DEVICE is '$DEVICE', allowed are cpu and cuda" >&2; exit 1 ;; \
    esac

# The dependencies, from empty packages of our names: a change of our code does not install them again.
COPY pyproject.toml README.md LICENSE ./
RUN mkdir mrp_serve service training && touch mrp_serve/__init__.py service/__init__.py training/__init__.py \
    && pip install -c constraints.txt . \
    && pip uninstall -y mrp-serve
# For clouds: `ray up` on AWS wants EXTRA_PACKAGES=boto3 on the head.
RUN printf '%s' "$EXTRA_PACKAGES" | xargs -r pip install -c constraints.txt

COPY mrp_serve mrp_serve
COPY service service
COPY training training
RUN pip install --no-deps . && pip check
RUN mrp-serve check --device cpu


FROM ${PYTHON_IMAGE} AS runtime

ARG DEVICE=cpu
ARG VERSION=""
ARG REVISION=""
LABEL org.opencontainers.image.title="mrp-serve" \
      org.opencontainers.image.description="Serves block-diffusion language models (SDAR) with Multi-token Residual Prediction (MRP)." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

# rsync: `ray up` copies files into the container with it. wget: KubeRay's probes, which ask this container, so by no proxy.
# gcc: Triton compiles with it what starts its kernels.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends rsync wget \
    && if [ "$DEVICE" = cuda ]; then apt-get install -y --no-install-recommends gcc libc6-dev; fi \
    && echo "use_proxy = off" >> /etc/wgetrc \
    && rm -rf /var/lib/apt/lists/*

# A login shell, which KubeRay and `ray up` start, forgets PATH; profile.d reminds it. Clusters mount the cache, where
# Triton keeps its compiled kernels, too: a new container compiles nothing.
RUN useradd --create-home --uid 1000 mrp \
    && mkdir -p /cache/huggingface && chown -R mrp:mrp /cache \
    && echo "export PATH=/opt/mrp-serve/bin:\$PATH" > /etc/profile.d/mrp-serve.sh

COPY --from=build /opt/mrp-serve /opt/mrp-serve
COPY deploy/entrypoint.sh /usr/local/bin/mrp-serve-image

# MRP_SERVE_HOST: a container's port is reached from outside it. RAY_*: as `mrp-serve serve` sets them, for clusters that start Ray themselves; these must bring a token. NVIDIA_*: what the
# container runtime hands in where the host has a GPU.
ENV PATH=/opt/mrp-serve/bin:$PATH \
    HOME=/home/mrp \
    HF_HOME=/cache/huggingface \
    TRITON_CACHE_DIR=/cache/huggingface/triton \
    PYTHONUNBUFFERED=1 \
    MRP_SERVE_HOST=0.0.0.0 \
    RAY_SERVE_THROUGHPUT_OPTIMIZED=1 \
    RAY_SERVE_PROXY_USE_GRPC=1 \
    RAY_worker_niceness=0 \
    RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH=67108864 \
    RAY_SERVE_ENABLE_DIRECT_INGRESS=0 \
    RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS=1 \
    RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=service.hooks:proxy_middleware \
    RAY_USAGE_STATS_ENABLED=0 \
    RAY_AUTH_MODE=token \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

USER 1000
WORKDIR /home/mrp
VOLUME /cache/huggingface
EXPOSE 8000
STOPSIGNAL SIGTERM

# Without a proxy: Docker hands its client's http_proxy to every container.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10m --start-interval=2s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; r.build_opener(r.ProxyHandler({})).open('http://127.0.0.1:' + os.environ.get('MRP_SERVE_PORT', '8000') + '/health', timeout=4)"]

ENTRYPOINT ["mrp-serve-image"]
CMD ["serve"]
