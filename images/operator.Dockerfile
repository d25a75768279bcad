# Operator, webhook and list and watch API: docker build -f images/operator.Dockerfile -t berth.dev/berth-operator:0.1.0 .
ARG BASE=python:3.11-slim-bookworm
# An image with the same Python that also has a shell and the module venv with pip.
ARG BUILDER=$BASE

FROM $BUILDER AS dependencies
# Set by `make images`, which fetches the packages before; without them pip uses its index.
ARG PIP_NO_INDEX
ARG PIP_FIND_LINKS
WORKDIR /build
COPY pyproject.toml requirements.lock ./
COPY images/requirements.py images/
RUN python3 -m venv tools && python3 -m venv --without-pip /opt/berth \
    && python3 images/requirements.py build > build.txt \
    && python3 images/requirements.py operator > operator.txt \
    && tools/bin/pip install --quiet --no-cache-dir --require-hashes -r build.txt \
    && tools/bin/pip --python /opt/berth/bin/python3 install --quiet --no-cache-dir --no-compile --require-hashes -r operator.txt \
    && find /opt/berth/lib -depth -type d -name tests -exec rm -r {} + \
    && python3 -m compileall -q --invalidation-mode unchecked-hash /opt/berth/lib

FROM dependencies AS program
COPY api api
COPY base base
COPY client client
COPY operator operator
# The distribution names all programs.
RUN touch README.md \
    && tools/bin/pip wheel --quiet --no-cache-dir --no-deps --no-build-isolation . \
    && tools/bin/pip --python /opt/berth/bin/python3 install --quiet --no-compile --no-deps --prefix /program *.whl \
    && rm /program/bin/berth-agent /program/bin/kubectl* \
    && python3 -m compileall -q --invalidation-mode unchecked-hash -s /program -p /opt/berth /program/lib

FROM $BASE
COPY --from=dependencies /opt/berth /opt/berth
COPY --from=program /program /opt/berth
# The byte code is complete, and the manifests mount the root read-only.
ENV PATH=/opt/berth/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 65532:65532
ENTRYPOINT ["berth-operator"]
