# fails STATUS: for the test that a failing case is seen.
echo "this case fails on purpose"
exit "$1"
