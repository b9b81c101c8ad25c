# Workers of remote engines: Beam's own worker, Python 3.11, and this package with what a build needs.
#   docker build --tag REGISTRY/dataprep:0.1.0 . && docker push REGISTRY/dataprep:0.1.0
# The image's Beam is the driver's: constraints.txt pins both.
ARG BEAM_VERSION=2.77.0
FROM apache/beam_python3.11_sdk:${BEAM_VERSION}

WORKDIR /opt/dataprep
COPY setup.py setup.cfg pyproject.toml constraints.txt README.md LICENSE ./
COPY dataprep dataprep
COPY pipelines pipelines
COPY loaders loaders
COPY train train
RUN pip install --no-cache-dir --constraint constraints.txt '.[beam]'

# glibc would give every image's buffer back to the kernel and ask for it again: a third of the time.
ENV MALLOC_MMAP_THRESHOLD_=268435456 \
    MALLOC_TRIM_THRESHOLD_=268435456 \
    OPENBLAS_NUM_THREADS=1 \
    RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT=1
# The base image's entry point starts Beam's worker.
