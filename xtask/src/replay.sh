#!/bin/sh
# Every check of the NVIDIA device that needs neither cargo nor a compiler. The exit code is 1 where one failed.
cd "$(dirname "$0")" || exit 1
export METALLIC_PTX="$PWD/metallic-ptx" METALLIC_TEST_DEVICE=cuda
unset METALLIC_TEST_ALL METALLIC_TEST_PTX
failed=0
./metallic devices || failed=1
echo "== kernels, one by one"
./kernels kernels:: || failed=1
echo "== families nobody has made"
# One of them is the processor's, over models that stay in the repository.
./families --skip every_family_gives_a_crowd_the_answers_each_gets_alone || failed=1
echo "== every operation"
./metallic tool ops --device cuda --failed || failed=1
[ "$failed" = 0 ] && echo "== all passed"
exit "$failed"
