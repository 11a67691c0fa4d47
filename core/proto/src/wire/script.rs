//! The scripts: which lines of their files a layout needs.

use std::cell::RefCell;
use std::rc::Rc;

use super::codes::CODES;
use super::words::write_bulk;
use crate::primitives::facts::Layout;

/// A Lua script.
pub(crate) struct Script {
    pub(crate) name: &'static str,
    pub(crate) source: &'static str,
    pub(crate) layout: Layout,
    /// Lines that only some scripts of the layout have: `mark`, about waiting writers, or `crowd`.
    pub(crate) variant: &'static str,
}

/// The source of a script, the hash by which the server knows it, and the first words of its
/// `EVALSHA` on the wire.
pub(crate) struct Made {
    pub(crate) text: String,
    pub(crate) sha1: String,
    pub(crate) evalsha: Vec<u8>,
}

thread_local! {
    /// The scripts this thread has assembled. A cache for the whole process would need a lock: a
    /// fork while another thread holds it would leave the child waiting for a thread that it does
    /// not have.
    static MADE: RefCell<Vec<(&'static Script, Rc<Made>)>> = const { RefCell::new(Vec::new()) };
}

impl Script {
    pub(crate) fn made(&'static self) -> Rc<Made> {
        let known = |made: &RefCell<Vec<(&'static Script, Rc<Made>)>>| {
            let made = made.borrow();
            made.iter()
                .find(|(script, _)| std::ptr::eq(*script, self))
                .map(|(_, made)| made.clone())
        };
        if let Some(made) = MADE.try_with(known).ok().flatten() {
            return made;
        }
        let text = assembled(self.source, self.layout, self.variant);
        let sha1 = sha1_smol::Sha1::from(&text).hexdigest();
        let mut evalsha = Vec::new();
        write_bulk(&mut evalsha, b"EVALSHA");
        write_bulk(&mut evalsha, sha1.as_bytes());
        let made = Rc::new(Made {
            text,
            sha1,
            evalsha,
        });
        // Fails only while the thread ends.
        let _ = MADE.try_with(|all| all.borrow_mut().push((self, made.clone())));
        made
    }
}

/// Copies the lines of a script without comments and indentation, as far as there is room, and
/// returns how many bytes they have. Comments are a third of the text, which every program and every
/// server would keep, and a module for WebAssembly has to be small.
#[expect(
    clippy::indexing_slicing,
    reason = "the compiler runs it, and would tell"
)]
pub(crate) const fn bare(source: &[u8], to: &mut [u8]) -> usize {
    let (mut at, mut length) = (0, 0);
    while at < source.len() {
        while at < source.len() && (source[at] == b' ' || source[at] == b'\n') {
            at += 1;
        }
        // `--#` and `--@` are for `lines_for`.
        let skipped = at + 2 < source.len()
            && source[at] == b'-'
            && source[at + 1] == b'-'
            && source[at + 2] == b' ';
        while at < source.len() {
            if !skipped {
                if length < to.len() {
                    to[length] = source[at];
                }
                length += 1;
            }
            at += 1;
            if source[at - 1] == b'\n' {
                break;
            }
        }
    }
    length
}

/// The text of a file in `lua/`, or in the folder of a primitive.
macro_rules! lua {
    ($name:literal) => {
        $crate::wire::script::lua!("wire/lua/", $name)
    };
    ($folder:expr, $name:literal) => {{
        const SOURCE: &[u8] = include_bytes!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/src/",
            $folder,
            $name,
            ".lua"
        ));
        const TEXT: [u8; $crate::wire::script::bare(SOURCE, &mut [])] = {
            let mut text = [0; $crate::wire::script::bare(SOURCE, &mut [])];
            $crate::wire::script::bare(SOURCE, &mut text);
            text
        };
        const {
            match str::from_utf8(&TEXT) {
                Ok(text) => text,
                Err(_) => panic!("a script is no UTF-8"),
            }
        }
    }};
}

/// A script: its primitive, its file there, the layout, and the variant.
macro_rules! script {
    ($primitive:ident $name:literal $layout:ident $($variant:ident)?) => {
        &$crate::wire::script::Script {
            name: $name,
            source: $crate::wire::script::lua!(
                concat!("primitives/", stringify!($primitive), "/"),
                $name
            ),
            layout: $crate::primitives::facts::Layout::$layout,
            variant: concat!($(stringify!($variant))?),
        }
    };
}

pub(crate) use {lua, script};

/// Parts that several scripts share.
const SHARED: [(&str, &str); 27] = [
    ("clock", lua!("clock")),
    ("token", lua!("token")),
    ("recall", lua!("recall")),
    ("holder", lua!("holder")),
    ("readers", lua!("readers")),
    ("timeouts", lua!("timeouts")),
    ("marked", lua!("marked")),
    ("permit_ids", lua!("permit_ids")),
    ("permit_keys", lua!("permit_keys")),
    ("permit_tell", lua!("permit_tell")),
    ("counter", lua!("counter")),
    ("counter_value", lua!("counter_value")),
    ("counter_mark", lua!("counter_mark")),
    ("counter_marked", lua!("counter_marked")),
    ("crowd_args", lua!("crowd_args")),
    ("crowd_first", lua!("crowd_first")),
    ("crowd_left", lua!("crowd_left")),
    ("crowd_listens", lua!("crowd_listens")),
    ("crowd_next", lua!("crowd_next")),
    ("crowd_over", lua!("crowd_over")),
    ("crowd_place", lua!("crowd_place")),
    ("crowd_tell", lua!("crowd_tell")),
    ("crowd_told", lua!("crowd_told")),
    ("fair_place", lua!("fair_place")),
    ("fair_heads", lua!("fair_heads")),
    ("fair_leave", lua!("fair_leave")),
    ("told", lua!("told")),
];

/// The source of a script for one layout. The server runs it from the top for every call, so it
/// contains nothing that this layout does not need, and no function that is called once.
///
/// `--# hash plain` starts lines for these layouts, `--# all` lines for every layout. `--# read-mark` starts
/// lines for this variant of a layout, in which the mark of waiting writers counts. `--@ clock`
/// includes that file. The codes that occur in the source are defined at its top.
fn assembled(text: &str, layout: Layout, variant: &str) -> String {
    let body = lines_for(text, layout, variant);
    let used = |(name, _): &&(&str, i64)| {
        body.split(|char: char| !char.is_ascii_alphanumeric())
            .any(|word| word == *name)
    };
    let codes: String = CODES
        .iter()
        .filter(used)
        .map(|(name, code)| format!("local {name} = {code}\n"))
        .collect();
    codes + &body
}

fn lines_for(text: &str, layout: Layout, variant: &str) -> String {
    let layout_name = match layout {
        Layout::Hash => "hash",
        Layout::Plain => "plain",
        Layout::Learning => "learning",
        Layout::Read => "read",
        Layout::Write => "write",
        Layout::Permits => "permits",
        Layout::Queued => "queued",
        Layout::QueuedPermits => "queued_permits",
    };
    let (mut all, mut wanted) = (String::new(), true);
    for line in text.lines() {
        if let Some(layouts) = line.strip_prefix("--# ") {
            let is_of_variant = |name: &str| name.split_once('-') == Some((layout_name, variant));
            wanted = layouts
                .split(' ')
                .any(|name| name == "all" || name == layout_name || is_of_variant(name));
        } else if let Some(part) = line.strip_prefix("--@ ").filter(|_| wanted) {
            let shared = SHARED.iter().find(|(name, _)| *name == part);
            debug_assert!(shared.is_some(), "a script needs {part}.lua");
            let shared = shared.map_or("", |(_, text)| text);
            all += &lines_for(shared, layout, variant);
        } else if wanted {
            all += line;
            all += "\n";
        }
    }
    all
}
