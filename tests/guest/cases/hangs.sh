# For the test that a case ends at its limit, and that nothing of it stays behind.
sleep 1000 &
sleep 1000
