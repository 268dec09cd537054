#!/bin/sh
# Says what `make demo` is about to do, before anything is fetched.
cd "$(dirname "$0")/.."
cat <<'END'
This runs all of isoloss on this machine: 18 small models are trained on a local
Kubernetes cluster, laws are fitted to them, learning rate and batch size are
predicted for continuing a checkpoint, and five short runs check the answer.
You will see the steps, the training, and the answer with its report at the end.
END
if [ -e .demo/report.html ]; then
    echo "It ran here before: what is there is not trained again."
elif [ -x .venv/bin/python ]; then
    echo "It takes about 8 minutes on two free cores."
else
    echo "It takes about 8 minutes on two free cores; the first time about 10 more, to"
    echo "fetch 6 GB of packages and compile Kubernetes, in 13 GB of disk."
fi
