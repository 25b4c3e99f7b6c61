# docker build -t negbench . && docker run -v "$PWD/runs:/runs" negbench
# runs the demo; other commands stand behind the image's name: docker run negbench list
FROM python:3.11-slim-bookworm

WORKDIR /src
COPY . .
RUN pip install --no-cache-dir '.[full]' -c constraints.txt

# by number: a cluster that refuses root cannot look a name up
RUN useradd --create-home --uid 10001 negbench && install --directory --owner negbench /runs
USER 10001
WORKDIR /home/negbench
ENV NEGBENCH_RUNS=/runs OMP_NUM_THREADS=1
VOLUME /runs
ENTRYPOINT ["negbench"]
CMD ["compare", "--recipe", "demo", "--workers", "2", "--name", "demo"]
