# The image of captions, made by Headway 0.1.0.
# `headway image` prints it. Change it through image.base, requirements and setup of the job file.

FROM --platform=linux/amd64 python:3.12-slim AS base

# A separate stage: pip's options and caches do not become part of the image.
FROM base AS environment
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# Packages of the base image, such as a torch built for its CUDA, are used, not installed again.
RUN python3 -m venv --system-site-packages /opt/headway

# Dependencies, in layers of their own: built again only when these files change.
COPY requirements/headway.txt /build/
RUN /opt/headway/bin/pip install -r /build/headway.txt

FROM base
# Any user id may run it, also one without an entry here: these folders are writable by all.
RUN install -d -m 1777 /headway/code /headway/node /home/headway /home/headway/.cache /home/headway/.config
ENV PATH=/opt/headway/bin:$PATH HOME=/home/headway USER=headway PYTHONUNBUFFERED=1
COPY --from=environment /opt/headway /opt/headway

# Headway itself, from the file beside this one: never by name from an index.
COPY headway-0.1.0-0abc-py3-none-any.whl /tmp/
RUN /opt/headway/bin/pip install --no-cache-dir --no-index --no-deps /tmp/headway-0.1.0-0abc-py3-none-any.whl

# Your code comes last: a change of it costs one small layer.
COPY code/ /headway/code/
LABEL headway.job="captions" \
      headway.version="0.1.0" \
      headway.code="2222222222222222222222222222222222222222222222222222222222222222" \
      headway.wheel="1111111111111111111111111111111111111111111111111111111111111111"
WORKDIR /headway/code
USER 1000:1000
ENTRYPOINT ["python3", "-m", "headway.runtime.worker"]
