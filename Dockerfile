# Image for workers of Beam's remote runners: Beam's own worker, with the driver's Python, this package and what builds
# need, also those of tables of URLs. tests/test_image.py reads this file; tests/cluster/test_image.py builds with its environment.
#   docker build --build-arg PYTHON_VERSION=3.11 --tag REGISTRY/dataprep:0.3.0 . && docker push REGISTRY/dataprep:0.3.0
# The image and the driver must have the same Beam: constraints.txt has the same version, which a test compares.
ARG BEAM_VERSION=2.77.0
ARG PYTHON_VERSION=3.11
FROM apache/beam_python${PYTHON_VERSION}_sdk:${BEAM_VERSION}

WORKDIR /opt/dataprep
COPY setup.py setup.cfg pyproject.toml constraints.txt README.md LICENSE ./
COPY dataprep dataprep
COPY pipelines pipelines
COPY loaders loaders
COPY train train
RUN pip install --no-cache-dir --constraint constraints.txt '.[beam,laion]'

# By default glibc returns every image's buffer to the kernel and requests it again, which takes time.
ENV MALLOC_MMAP_THRESHOLD_=268435456 \
    MALLOC_TRIM_THRESHOLD_=268435456 \
    OPENBLAS_NUM_THREADS=1 \
    RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT=1
# The base image's entry point starts Beam's worker.
