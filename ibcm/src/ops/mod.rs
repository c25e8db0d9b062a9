//! Operations on a connection: builders that are futures, which post a work request and wait for its completion.
//!
//! All of them are one machine ([`op`]): the way into the send queue ([`entry`]), the completion, and what a drop at
//! each point means. The other modules say what each operation asks for and what it gives.

mod atomic;
mod entry;
mod op;
mod posted;
mod read;
mod send;
mod write;

pub(crate) use entry::{Entry, Source};
pub(crate) use op::detach;

pub use atomic::AtomicOp;
pub use posted::{Post, Posted};
pub use read::ReadOp;
pub use send::SendOp;
pub use write::WriteOp;

/// What every operation has: it can be awaited, posted alone, and fenced. `$name` has a field `op`.
macro_rules! operation {
    ([$($generics:tt)*] $name:ty => $output:ty) => {
        impl<$($generics)*> $name {
            /// Ends when the operation has its place in the send queue, and with it its place in the order of all
            /// that this connection does; waits while the queue is full. The [`Posted`](crate::Posted) that it gives
            /// is the future of the result.
            ///
            /// # Errors
            /// As the operation itself, for what is refused before it is posted.
            ///
            /// # Cancel safety
            /// Dropped before it is done, nothing happened and the buffer goes home.
            pub fn post(self) -> crate::Post<'a, $output> {
                crate::Post::new(self.op)
            }

            /// Starts when all reads and atomics that were posted before on this connection are complete. What
            /// is posted behind it waits, too.
            pub fn fence(mut self) -> Self {
                self.op.request().set_flag(ibdev::SendFlags::FENCE);
                self
            }
        }

        impl<$($generics)*> std::future::Future for $name {
            type Output = Result<$output, crate::OpError>;

            fn poll(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
            ) -> std::task::Poll<Self::Output> {
                self.project().op.poll(cx)
            }
        }

        impl<$($generics)*> std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.op.fmt(stringify!($name), f)
            }
        }
    };
}

use operation;
