# A server for any bundle, from $AIP_STORAGE_URI, made by Headway 0.1.0.
# `headway serve --image` prints it. It listens on $PORT, or on Vertex AI's $AIP_HTTP_PORT.

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
RUN install -d -m 1777 /home/headway /home/headway/.cache
ENV PATH=/opt/headway/bin:$PATH HOME=/home/headway PYTHONUNBUFFERED=1 PORT=8080
COPY --from=environment /opt/headway /opt/headway

# Headway itself, from the wheel in this folder, never from a package index.
COPY headway-0.1.0-0abc-py3-none-any.whl /tmp/
RUN /opt/headway/bin/pip install --no-cache-dir --no-index --no-deps /tmp/headway-0.1.0-0abc-py3-none-any.whl
LABEL headway.bundle="server" \
      headway.recipe="any" \
      headway.version="0.1.0" \
      headway.wheel="1111111111111111111111111111111111111111111111111111111111111111"
# Runs without root; the user cannot change the installed files.
USER 1000:1000
EXPOSE 8080
ENTRYPOINT ["headway", "serve"]
