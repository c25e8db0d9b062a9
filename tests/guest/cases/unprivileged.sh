# A user without rights: first he may not open the device at all, then he may, but may lock little memory.
mode=$(stat -c %a /dev/infiniband/uverbs0)
trap 'chmod "$mode" /dev/infiniband/uverbs0' EXIT
nobody() {
  setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all --bounding-set=-all \
    prlimit --memlock=65536:65536 /job/rxe0 --ignored --test-threads=1 --color=never --exact "bad_states::$1" | tee result
  grep -q '^test result: ok\. 1 ' result
}
chmod 600 /dev/infiniband/uverbs0
nobody unprivileged_access_to_the_files_is_asked_for
chmod 666 /dev/infiniband/uverbs0
nobody unprivileged_too_little_memory_can_be_locked
