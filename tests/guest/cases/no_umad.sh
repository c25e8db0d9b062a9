# A kernel without ib_umad: the error says what to load.
modprobe -r ib_umad
trap 'modprobe ib_umad' EXIT
/job/rxe0 --ignored --test-threads=1 --color=never --exact bad_states::unloaded_umad_is_named | tee result
grep -q '^test result: ok\. 1 ' result
