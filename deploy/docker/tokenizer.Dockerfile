# Your tokenizer as an image of its own, on top of the server's:
#   docker build -f deploy/docker/tokenizer.Dockerfile --build-arg SERVER=tokend --build-arg FILE=tokenizer.json -t my-tokend .
# It is verified while the image is built, so that the fast engine serves from the first second. A verdict counts for the
# kind of processor that made it: on another one the server verifies once more, in the background.
ARG SERVER=tokend
# hadolint ignore=DL3006
FROM ${SERVER}
ARG FILE=tokenizer.json
COPY ${FILE} /tokenizer/tokenizer.json
# hadolint takes each TOKEND_ for a token.
# hadolint ignore=DL3064
ENV TOKEND_TOKENIZER=/tokenizer/tokenizer.json \
    TOKEND_STATE_DIR=/tokenizer/state
USER 0
RUN mkdir /tokenizer/state && chown 65532:65532 /tokenizer/state
# Whoever serves has to read what is written here.
USER 65532:65532
# 3: the reference alone may serve this file, which is no fault of the build.
RUN tokend verify /tokenizer/tokenizer.json || test $? -eq 3
