# zaya_jax on CPUs.  docker build -f docker/cpu.Dockerfile -t zaya_jax:cpu .
#                    docker run --rm -it -v "$PWD/runs:/zaya_jax/runs" zaya_jax:cpu make demo
#
# Never built by this project's checks: the machine they run on has no container runtime.
FROM python:3.13-slim

# bubblewrap isolates programs that a model wrote; inside a container it needs --privileged, or
# the config field that runs them without it.
RUN apt-get update \
 && apt-get install -y --no-install-recommends bubblewrap make \
 && rm -rf /var/lib/apt/lists/*

WORKDIR /zaya_jax
COPY . .
# What `make` would do at its first call, so that containers start at once.
RUN make .venv/installed-base .venv/installed-data .venv/installed-test
ENV PATH=/zaya_jax/.venv/bin:$PATH
CMD ["python", "-m", "zaya_jax"]
