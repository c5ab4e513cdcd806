# trainyard nccl-tests-cuda13.0-efa: NVIDIA's nccl-tests with NCCL 2.30.7, CUDA 13.0, EFA.
# Written by `trainyard images render nccl-tests-cuda13.0-efa`. To change it, change images/matrix.toml or the template.

ARG BASE_IMAGE=nvidia/cuda:13.0.3-base-ubuntu24.04@sha256:7c7413a56200486f71f181cad9310f6fd31b6bb21816ade15fc9c1e1e927a5c1
ARG BUILDER_IMAGE=nvidia/cuda:13.0.3-devel-ubuntu24.04@sha256:b7ae301dea2c162444795462ce17a05f6a516e5a75944b57af5b88540a1a2266
ARG SOURCE_DATE_EPOCH=0
ARG VERSION=0.0.0
ARG REVISION=""
ARG CREATED="1970-01-01T00:00:00Z"
ARG EFA_INSTALLER_SHA256="fa6dff8593d866866c13cb4640d9059835cd4efa427971f100ab40c97bef2841"
ARG NCCL_TESTS_SHA256="38974e70342150ede0e3fb8fd24bfe60ccbde90fa20241716ba8bb338e6b61a0"

FROM ${BUILDER_IMAGE} AS tools
RUN rm -f /etc/apt/sources.list.d/cuda*.list \
    && apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
        build-essential \
        ca-certificates \
        python3 \
        python3-venv \
    && apt-get clean \
    && rm -rf /var/lib/apt/lists/* /var/log/apt /var/log/*.log /var/cache/ldconfig/aux-cache \
        /var/cache/debconf/*-old /var/lib/dpkg/*-old
COPY build/bytecode.py uv.txt /build/
RUN --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=uv,target=/etc/uv/uv.toml \
    python3 -m venv /opt/uv \
    && SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt PIP_CERT=/etc/ssl/certs/ca-certificates.crt \
        /opt/uv/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r /build/uv.txt

FROM tools AS efa-installer
ARG EFA_INSTALLER_SHA256
COPY build/fetch.py /build/
RUN --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    python3 /build/fetch.py https://efa-installer.amazonaws.com/aws-efa-installer-1.50.0.tar.gz \
        "${EFA_INSTALLER_SHA256}" /tmp/installer.tar.gz \
    && mkdir /installer \
    && tar --extract --gzip --file /tmp/installer.tar.gz --directory /installer --strip-components 1 --no-same-owner \
    && rm /tmp/installer.tar.gz

# NCCL of the lock, laid out as builds expect it.
FROM tools AS nccl
COPY requirements.txt /build/
RUN --mount=type=cache,id=trainyard-uv,target=/var/cache/uv,sharing=locked \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=uv,target=/etc/uv/uv.toml \
    SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt \
        UV_CACHE_DIR=/var/cache/uv UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never \
        /opt/uv/bin/uv pip install --python /opt/uv/bin/python --target /wheels \
        --no-deps --require-hashes --no-build -r /build/requirements.txt \
    && mkdir /opt/nccl \
    && cp -r /wheels/nvidia/nccl/include /wheels/nvidia/nccl/lib /opt/nccl/ \
    && ln -s libnccl.so.2 /opt/nccl/lib/libnccl.so

FROM tools AS nccl-tests
ARG SOURCE_DATE_EPOCH
ARG NCCL_TESTS_SHA256
COPY build/fetch.py /build/
RUN --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    python3 /build/fetch.py https://github.com/NVIDIA/nccl-tests/archive/refs/tags/v2.17.6.tar.gz \
        "${NCCL_TESTS_SHA256}" /tmp/nccl-tests.tar.gz \
    && mkdir /src \
    && tar --extract --gzip --file /tmp/nccl-tests.tar.gz --directory /src --strip-components 1 --no-same-owner
COPY --from=nccl /opt/nccl /opt/nccl
RUN case "$(uname -m)" in \
        x86_64) codes="75 80 86 90 100 120" ;; \
        aarch64) codes="80 90 100 110 120" ;; \
    esac \
    && gencode="" \
    && for code in ${codes}; do \
        gencode="${gencode} -gencode=arch=compute_${code},code=sm_${code}"; \
    done \
    && make --directory /src --jobs "$(nproc)" MPI=0 CUDA_HOME=/usr/local/cuda NCCL_HOME=/opt/nccl \
        NVCC_GENCODE="${gencode} -gencode=arch=compute_${code},code=compute_${code}" \
    && mkdir /opt/nccl-tests \
    && cp /src/build/*_perf /opt/nccl-tests/

FROM ${BASE_IMAGE} AS runtime
RUN rm -f /etc/apt/sources.list.d/cuda*.list \
    && apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
        tini \
    && apt-get clean \
    && rm -rf /var/lib/apt/lists/* /var/log/apt /var/log/*.log /var/cache/ldconfig/aux-cache \
        /var/cache/debconf/*-old /var/lib/dpkg/*-old
RUN groupadd --gid 65532 trainyard \
    && SOURCE_DATE_EPOCH=0 useradd --no-log-init --uid 65532 --gid 65532 \
        --create-home --shell /usr/sbin/nologin trainyard \
    && install --directory --owner=65532 --group=65532 /workspace \
    && rm -f /etc/passwd- /etc/group- /etc/shadow- /etc/gshadow- /etc/subuid- /etc/subgid-
ARG EFA_INSTALLER_SHA256
RUN --mount=type=bind,from=efa-installer,source=/installer,target=/installer,rw \
    echo "EFA installer 1.50.0 ${EFA_INSTALLER_SHA256}" \
    && printf 'APT::Install-Recommends "false";\n' >/etc/apt/apt.conf.d/90-no-recommends \
    && apt-get update \
    && env --chdir=/installer DEBIAN_FRONTEND=noninteractive \
        ./efa_installer.sh --yes --skip-kmod --skip-limit-conf --no-verify --disable-ngc \
    && rm /etc/apt/apt.conf.d/90-no-recommends \
    && if [ ! -e "/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so" ]; then \
        echo "the plugin is not at /opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so, as images/matrix.toml says, but here:" >&2; \
        find / -xdev -name 'libnccl-net*.so*' >&2; \
        exit 1; \
    fi \
    && printf '%s\n' /opt/amazon/efa/lib "$(dirname "/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so")" /opt/trainyard/lib \
        >/etc/ld.so.conf.d/trainyard.conf \
    && ldconfig \
    && apt-get clean \
    && rm -rf /var/lib/apt/lists/* /var/log/apt /var/log/*.log /var/cache/ldconfig/aux-cache \
        /var/cache/debconf/*-old /var/lib/dpkg/*-old
COPY --from=nccl /opt/nccl/lib/libnccl.so.2 /opt/trainyard/lib/
# The plugin asks for CUDA's library by its name without a number.
RUN ln -s /usr/local/cuda/lib64/libcudart.so.13 /opt/trainyard/lib/libcudart.so \
    && test -e /opt/trainyard/lib/libcudart.so
COPY --from=nccl-tests /opt/nccl-tests/ /opt/nccl-tests/
COPY image.json /etc/trainyard/
ENV PATH=/opt/nccl-tests:${PATH}
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
ENV NCCL_DEBUG=WARN
ENV NCCL_NET_PLUGIN=ofi
# Exactly one NCCL, and the tests find it.
RUN echo /opt/trainyard/lib >/etc/ld.so.conf.d/trainyard-nccl.conf \
    && ldconfig \
    && rm -rf /var/cache/ldconfig/aux-cache \
    && test "$(find / -xdev -type f -name 'libnccl.so*')" = /opt/trainyard/lib/libnccl.so.2 \
    && ldd /opt/nccl-tests/all_reduce_perf \
    && case "$(ldd /opt/nccl-tests/*_perf)" in *"not found"*) exit 1 ;; esac

FROM tools AS sbom
ARG SOURCE_DATE_EPOCH
ARG VERSION
COPY build/sbom.py image.json /build/
COPY --from=runtime /var/lib/dpkg/status /build/
RUN python3 /build/sbom.py --facts /build/image.json --version "${VERSION}" --no-python --dpkg /build/status \
        --component nccl=2.30.7 --component nccl-tests=2.17.6 >/sbom.cdx.json

FROM runtime AS image
COPY --from=sbom /sbom.cdx.json /etc/trainyard/
ARG BASE_IMAGE
ARG VERSION
ARG REVISION
ARG CREATED
LABEL org.opencontainers.image.title="trainyard nccl-tests-cuda13.0-efa" \
      org.opencontainers.image.description="NVIDIA's nccl-tests with NCCL 2.30.7, CUDA 13.0, EFA" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.base.name="${BASE_IMAGE}" \
      dev.trainyard.row="nccl-tests-cuda13.0-efa" \
      dev.trainyard.kind="nccl-tests" \
      dev.trainyard.variant="efa" \
      dev.trainyard.cuda="13.0" \
      dev.trainyard.nccl="2.30.7" \
      dev.trainyard.aws-ofi-nccl="1.21.1" \
      dev.trainyard.efa-installer="1.50.0" \
      dev.trainyard.minimum-driver="580.65.06" \
      dev.trainyard.sm="amd64=sm_75,sm_80,sm_86,sm_90,sm_100,sm_120;arm64=sm_80,sm_90,sm_100,sm_110,sm_120"

WORKDIR /workspace
USER 65532:65532
ENTRYPOINT ["/usr/bin/tini", "-s", "--", "/opt/nccl-tests/all_reduce_perf"]
CMD ["-b", "8", "-e", "1G", "-f", "2", "-g", "1"]
