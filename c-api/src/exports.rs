//! The form of an exported function.

/// Exports functions to C. Each row is one of:
/// - `fn`: reads the arguments ([`Given`](crate::arguments::Given)), runs the body, and answers
///   with a status;
/// - `fn ... -> T = otherwise => value`: answers with a value; `otherwise` stands for a failure;
/// - `free`: takes a handle back;
/// - `make` and `counted`: makes a handle by a name that ends with a NUL, or has a length;
/// - `ask` and `start`: waits for an operation and stores its answer, or begins it, as `What` is
///   to come of it;
/// - `wait`, `cancellable`, `start` and `cancel`: the same for one that can be cancelled.
///
/// The comments of the rows are the manual. `- SERVER` and `- STARTED` stand for the statuses of all
/// functions that ask the server, and of all that begin something. cbindgen does not see through a
/// macro: it gets `EXPORTED`, the same functions without their bodies, from `tests/header.rs`.
macro_rules! exports {
    (@rows [$($text:expr,)*]) => {
        #[cfg(test)]
        pub(crate) const EXPORTED: &[&str] = &[$($text,)*];
    };
    (@rows $texts:tt $(#[$doc:meta])*
    fn $name:ident($($arg:ident: $type:ty),*) $body:block $($rest:tt)*) => {
        exports! { @export $texts $(#[$doc])* $name[$($arg: $type),*][-> redlatch_status] {
            $crate::status::status(|| { exports!(@read $($arg)*); $body })
        } $($rest)* }
    };
    (@rows $texts:tt $(#[$doc:meta])*
    fn $name:ident($($arg:ident: $type:ty),*) -> $answer:ty = $otherwise:expr => $value:expr;
    $($rest:tt)*) => {
        exports! { @export $texts $(#[$doc])* $name[$($arg: $type),*][-> $answer] {
            $crate::status::value($otherwise, || { exports!(@read $($arg)*); Ok($value) })
        } $($rest)* }
    };
    (@rows $texts:tt $(#[$doc:meta])* free $name:ident($arg:ident: *mut $of:ident); $($rest:tt)*) => {
        exports! { @export $texts $(#[$doc])* $name[$arg: *mut $of][] {
            $crate::status::status(|| {
                // SAFETY: the header asks for a handle that is not used any more.
                if let Some(handle) = unsafe { $crate::arguments::taken($arg) } {
                    $crate::arguments::Freed::freed(handle);
                }
                Ok(())
            });
        } $($rest)* }
    };
    (@rows $texts:tt $(#[$doc:meta])*
    make $name:ident($client:ident: $of:ty, $given:ident, $($arg:ident: $type:ty),*) $body:block
    $(#[$also:meta])* counted $counted:ident; $($rest:tt)*) => {
        exports! { @rows $texts
            $(#[$doc])* fn $name($client: $of, $given: *const c_char, $($arg: $type),*) {
                let $given = $given.bytes()?;
                $body
            }
            $(#[$also])*
            fn $counted($client: $of, $given: *const c_char, length: usize, $($arg: $type),*) {
                let $given = $given.counted(length)?;
                $body
            }
            $($rest)*
        }
    };
    (@rows $texts:tt $(#[$doc:meta])*
    ask $name:ident($on:ident: *$mut:tt $of:ident $(, $arg:ident: $type:ty)*
        $(; $need:ident $out:ident: $place:ty)?) = $what:expr, $operation:expr;
    $(#[$begun:meta])* start $start:ident; $($rest:tt)*) => {
        exports! { @rows $texts
            $(#[$doc])* fn $name($on: *$mut $of $(, $arg: $type)* $(, $out: $place)?) {
                $($out.$need()?;)?
                $operation.wait().map(exports!(@take $($out)?))
            }
            $(#[$begun])* fn $start($on: *mut $of $(, $arg: $type)*, tag: u64) {
                $on.client.start(&$on, tag, $what, || Ok($operation))
            }
            $($rest)*
        }
    };
    (@rows $texts:tt $(#[$doc:meta])*
    wait $name:ident($on:ident: *mut $of:ident $(, $arg:ident: $type:ty)*
        $(; $out:ident: $place:ty)?) = $what:expr, $operation:expr => $take:expr;
    $(#[$ended:meta])* cancellable $cancellable:ident;
    $(#[$begun:meta])* start $start:ident;
    $(#[$stopped:meta])* cancel $cancel:ident; $($rest:tt)*) => {
        exports! { @rows $texts
            $(#[$doc])* fn $name($on: *mut $of $(, $arg: $type)* $(, $out: $place)?) {
                $operation.wait().map($take)
            }
            $(#[$ended])* fn $cancellable($on: *mut $of $(, $arg: $type)*,
                canceller: *mut redlatch_canceller $(, $out: $place)?) {
                $crate::canceller::wait($operation, canceller).map($take)
            }
            $(#[$begun])* fn $start($on: *mut $of $(, $arg: $type)*, tag: u64) {
                $on.client.start(&$on, tag, $what, || Ok($operation))
            }
            $(#[$stopped])* fn $cancel($on: *mut $of, tag: u64, cancelled: *mut bool) {
                cancelled.put($on.client.cancel(&$on, tag)?);
                Ok(())
            }
            $($rest)*
        }
    };
    (@take) => { drop };
    (@take $out:ident) => { |answer| $out.put(answer) };
    (@export [$($text:expr,)*] $(#[$doc:meta])*
    $name:ident[$($args:tt)*][$($answer:tt)*] $body:block $($rest:tt)*) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($args)*) $($answer)* $body

        exports! { @rows [$($text,)* stringify!(
            $(#[$doc])* #[unsafe(no_mangle)] pub unsafe extern "C" fn $name($($args)*) $($answer)* {}
        ),] $($rest)* }
    };
    (@read $($arg:ident)*) => {
        // SAFETY: the header asks for arguments that can be read as their types say.
        let ($($arg,)*) = unsafe {
            $($crate::arguments::Given::begin(&$arg);)*
            ($($crate::arguments::Given::read($arg, stringify!($arg))?,)*)
        };
    };
    ($($rows:tt)*) => { exports! { @rows [] $($rows)* } };
}
pub(crate) use exports;
