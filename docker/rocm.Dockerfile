# zaya_jax on AMD GPUs.
#   docker build -f docker/rocm.Dockerfile -t zaya_jax:rocm .
#   docker run --rm -it --device=/dev/kfd --device=/dev/dri --group-add video --ipc=host \
#       --shm-size=64g --security-opt seccomp=unconfined zaya_jax:rocm
#
# Untested on hardware: this project has not run on an AMD GPU, nor built this image. docs/amd.md
# says what to check first; the image starts with the first of these checks.
#
# AMD's image brings ROCm and a jax of its own, which may be older than zaya_jax needs; the extra
# `rocm` then installs jax and the plugin of one version beside it. Name a tag whose ROCm your
# driver knows:  --build-arg BASE=rocm/jax:TAG
ARG BASE=rocm/jax:latest
FROM ${BASE}

RUN apt-get update \
 && apt-get install -y --no-install-recommends bubblewrap make \
 && rm -rf /var/lib/apt/lists/*

WORKDIR /zaya_jax
COPY . .
RUN python3 -m pip install --no-cache-dir -e '.[rocm,data,rl,serve]'

# Beside these, the XLA flags of docs/amd.md belong into the job script.
ENV XLA_PYTHON_CLIENT_MEM_FRACTION=0.9 \
    GPU_MAX_HW_QUEUES=2 \
    HIP_FORCE_DEV_KERNARG=1
CMD ["python3", "-m", "zaya_jax.systems.doctor"]
