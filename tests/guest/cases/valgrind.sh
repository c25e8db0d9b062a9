# The device under valgrind: each kind of object made, used and dropped; no bad access, nothing lost.
tests=(
  drops::nothing_is_left_in_the_kernel_and_posted_buffers_come_home
  memory::regions_are_the_owners_memory
  memory::lists_of_buffers_are_gathered_and_scattered
  memory::atomics_give_the_value_before
  shared_receives::a_destroyed_queue_pair_leaves_its_places
  datagrams::a_posted_datagram_keeps_its_address_handle
  connections::what_can_not_be_posted_stays_with_the_caller_and_says_why
)
valgrind --suppressions="$GUEST_DIR/valgrind.supp" --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite --show-leak-kinds=definite \
  /job/rxe0 --ignored --test-threads=1 --color=never --exact "${tests[@]}" 2>&1 | tee result
grep -q "^test result: ok\. ${#tests[@]} " result
