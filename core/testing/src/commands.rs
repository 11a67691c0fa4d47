//! The commands on data: those that the locks' scripts use, and those with which a test looks.

use std::collections::VecDeque;

use crate::keyspace::{Field, Key, Keyspace, Value};
use crate::resp::Reply;
use redlatch_proto::glob;

/// A reply, or the text of an error, which begins with its code.
pub(crate) type Answer = Result<Reply, String>;

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
const NO_INTEGER: &str = "ERR value is not an integer or out of range";
const NO_FLOAT: &str = "ERR value is not a valid float";
const OVERFLOW: &str = "ERR increment or decrement would overflow";
pub(crate) const SYNTAX: &str = "ERR syntax error";

pub(crate) fn unknown(name: &str) -> String {
    format!(
        "ERR unknown command '{name}': the in-memory server of redlatch has only the commands that redlatch needs; \
         use a real server for others"
    )
}

/// The use that a command makes of its keys, for client tracking.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Access {
    /// It reads its first argument.
    Reads,
    /// It reads all its arguments.
    ReadsAll,
    Writes,
    /// It has no keys.
    Looks,
}

/// A command by its name.
pub(crate) struct Command {
    pub(crate) name: &'static str,
    /// The number of words; negative: at least so many.
    pub(crate) arity: i32,
    pub(crate) access: Access,
    pub(crate) run: fn(&mut Data<'_>, &[Vec<u8>]) -> Answer,
}

/// The data as one command sees it.
pub(crate) struct Data<'a> {
    pub(crate) keyspace: &'a mut Keyspace,
    pub(crate) database: usize,
    /// The server's clock, in ms.
    pub(crate) now: u64,
    /// The keys that the command has changed.
    pub(crate) changed: &'a mut Vec<Key>,
}

macro_rules! commands {
    ($($name:literal $arity:literal $access:ident $run:expr;)*) => {
        &[$(Command { name: $name, arity: $arity, access: Access::$access, run: $run },)*]
    };
}

const COMMANDS: &[Command] = commands! {
    "GET" 2 Reads get;
    "MGET" -2 ReadsAll mget;
    "SET" -3 Writes set;
    "SETEX" 4 Writes |data, args| set_for(data, args, "EX");
    "PSETEX" 4 Writes |data, args| set_for(data, args, "PX");
    "STRLEN" 2 Reads strlen;
    "INCR" 2 Writes |data, args| add(data, arg(args, 0), 1);
    "DECR" 2 Writes |data, args| add(data, arg(args, 0), -1);
    "INCRBY" 3 Writes |data, args| { let by = integer(arg(args, 1))?; add(data, arg(args, 0), by) };
    "DECRBY" 3 Writes decrby;
    "DEL" -2 Writes del;
    "UNLINK" -2 Writes del;
    "EXISTS" -2 ReadsAll exists;
    "TYPE" 2 Reads kind;
    "TTL" 2 Reads |data, args| Ok(Reply::Int(data.left(arg(args, 0), |left| left.saturating_add(500) / 1000)));
    "PTTL" 2 Reads |data, args| Ok(Reply::Int(data.left(arg(args, 0), |left| left)));
    "EXPIRETIME" 2 Reads |data, args| { let now = data.now; Ok(Reply::Int(data.left(arg(args, 0), |left| left.saturating_add(signed(now)).saturating_add(500) / 1000))) };
    "PEXPIRETIME" 2 Reads |data, args| { let now = data.now; Ok(Reply::Int(data.left(arg(args, 0), |left| left.saturating_add(signed(now))))) };
    "EXPIRE" -3 Writes |data, args| expire(data, args, "expire", 1000, true);
    "PEXPIRE" -3 Writes |data, args| expire(data, args, "pexpire", 1, true);
    "EXPIREAT" -3 Writes |data, args| expire(data, args, "expireat", 1000, false);
    "PEXPIREAT" -3 Writes |data, args| expire(data, args, "pexpireat", 1, false);
    "PERSIST" 2 Writes persist;
    "HSET" -4 Writes hset;
    "HMSET" -4 Writes |data, args| hset(data, args).map(|_| Reply::OK);
    "HGET" 3 Reads hget;
    "HMGET" -3 Reads hmget;
    "HGETALL" 2 Reads hgetall;
    "HDEL" -3 Writes hdel;
    "HLEN" 2 Reads |data, args| Ok(Reply::count(data.hash(arg(args, 0))?.len()));
    "HEXISTS" 3 Reads |data, args| Ok(Reply::flag(field(data.hash(arg(args, 0))?, arg(args, 1)).is_some()));
    "HINCRBY" 4 Writes hincrby;
    "RPUSH" -3 Writes |data, args| push(data, args, VecDeque::push_back);
    "LPUSH" -3 Writes |data, args| push(data, args, VecDeque::push_front);
    "LPOP" -2 Writes |data, args| pop(data, args, VecDeque::pop_front);
    "RPOP" -2 Writes |data, args| pop(data, args, VecDeque::pop_back);
    "LLEN" 2 Reads |data, args| Ok(Reply::count(data.list(arg(args, 0))?.map_or(0, VecDeque::len)));
    "LINDEX" 3 Reads lindex;
    "LRANGE" 4 Reads lrange;
    "LREM" 4 Writes lrem;
    "LSET" 4 Writes lset;
    "LPOS" 3 Reads lpos;
    "ZADD" -4 Writes zadd;
    "ZREM" -3 Writes zrem;
    "ZSCORE" 3 Reads zscore;
    "ZRANK" 3 Reads zrank;
    "ZCARD" 2 Reads |data, args| Ok(Reply::count(data.sorted(arg(args, 0))?.len()));
    "ZCOUNT" 4 Reads zcount;
    "ZRANGE" -4 Reads zrange;
    "ZRANGEBYSCORE" -4 Reads zrangebyscore;
    "DUMP" 2 Reads dump;
    "KEYS" 2 Looks keys;
    "SCAN" -2 Looks scan;
    "DBSIZE" 1 Looks |data, _| Ok(Reply::count(data.keyspace.keys(data.database).count()));
    "ECHO" 2 Looks |_, args| Ok(Reply::bulk(arg(args, 0)));
};

/// The command of this name, in capitals.
pub(crate) fn find(name: &str) -> Option<&'static Command> {
    COMMANDS.iter().find(|command| command.name == name)
}

impl Command {
    /// The arguments that it reads.
    pub(crate) fn read<'a>(&self, args: &'a [Vec<u8>]) -> &'a [Vec<u8>] {
        match self.access {
            Access::Reads => args.get(..1).unwrap_or_default(),
            Access::ReadsAll => args,
            Access::Writes | Access::Looks => &[],
        }
    }
}

/// Whether a command may have so many words, its name included.
pub(crate) fn takes(arity: i32, words: usize) -> bool {
    let needed = usize::try_from(arity.unsigned_abs()).unwrap_or(usize::MAX);
    if arity < 0 {
        words >= needed
    } else {
        words == needed
    }
}

impl Data<'_> {
    fn get(&self, key: &[u8]) -> Option<&Value> {
        self.keyspace.get(self.database, key)
    }

    fn text(&self, key: &[u8]) -> Result<Option<&[u8]>, String> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(WRONG_TYPE.to_owned()),
        }
    }

    fn hash(&self, key: &[u8]) -> Result<&[Field], String> {
        match self.get(key) {
            None => Ok(&[]),
            Some(Value::Hash(fields)) => Ok(fields),
            Some(_) => Err(WRONG_TYPE.to_owned()),
        }
    }

    fn list(&self, key: &[u8]) -> Result<Option<&VecDeque<Vec<u8>>>, String> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::List(list)) => Ok(Some(list)),
            Some(_) => Err(WRONG_TYPE.to_owned()),
        }
    }

    fn sorted(&self, key: &[u8]) -> Result<&[(f64, Vec<u8>)], String> {
        match self.get(key) {
            None => Ok(&[]),
            Some(Value::Sorted(members)) => Ok(members),
            Some(_) => Err(WRONG_TYPE.to_owned()),
        }
    }

    /// Puts a value in the place of another; the time to live stays.
    fn put(&mut self, key: &[u8], value: Value) {
        self.keyspace.put(self.database, key, value);
        self.changed.push(key.to_vec());
    }

    fn remove(&mut self, key: &[u8]) -> bool {
        let removed = self.keyspace.remove(self.database, key);
        if removed {
            self.changed.push(key.to_vec());
        }
        removed
    }

    fn let_end(&mut self, key: &[u8], ends: Option<u64>) {
        self.keyspace.let_end(self.database, key, ends);
        self.changed.push(key.to_vec());
    }

    /// The ms that are left, made into another number; -1 without an end, -2 without a key.
    fn left(&self, key: &[u8], show: impl Fn(i64) -> i64) -> i64 {
        match self.keyspace.end(self.database, key) {
            None => -2,
            Some(None) => -1,
            Some(Some(end)) => show(signed(end.saturating_sub(self.now))),
        }
    }
}

fn arg(args: &[Vec<u8>], at: usize) -> &[u8] {
    args.get(at).map_or(&[], Vec::as_slice)
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// An integer as Redis reads it: no blank, no plus, no leading zero.
pub(crate) fn integer(text: &[u8]) -> Result<i64, String> {
    std::str::from_utf8(text)
        .ok()
        .and_then(|text| {
            text.parse()
                .ok()
                .filter(|number: &i64| number.to_string() == text)
        })
        .ok_or_else(|| NO_INTEGER.to_owned())
}

fn float(text: &[u8], refusal: &str) -> Result<f64, String> {
    std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse().ok())
        .filter(|number: &f64| !number.is_nan())
        .ok_or_else(|| refusal.to_owned())
}

fn is(word: &[u8], name: &str) -> bool {
    word.eq_ignore_ascii_case(name.as_bytes())
}

fn capitals(word: &[u8]) -> String {
    String::from_utf8_lossy(word).to_ascii_uppercase()
}

// ---- keys ----

fn del(data: &mut Data<'_>, args: &[Vec<u8>]) -> Answer {
    Ok(Reply::count(
        args.iter().filter(|key| data.remove(key)).count(),
    ))
}

fn exists(data: &mut Data<'_>, args: &[Vec<u8>]) -> Answer {
    Ok(Reply::count(
        args.iter().filter(|key| data.get(key).is_some()).count(),
    ))
}

fn kind(data: &mut Data<'_>, args: &[Vec<u8>]) -> Answer {
    let kind = data.get(arg(args, 0)).map_or("none", Value::kind);
    Ok(Reply::Status(kind.into()))
}

/// Text that is the same for the same data. It is not that of Redis, and cannot be restored.
fn dump(data: &mut Data<'_>, args: &[Vec<u8>]) -> Answer {
    let value = data.get(arg(args, 0));
    Ok(value.map_or(Reply::Nil, |value| Reply::bulk(format!("{value:?}"))))
}

/// Its times are in units of so many ms, from now on or from 1970 on.
fn expire(data: &mut Data<'_>, args: &[Vec<u8>], name: &str, unit: i64, from_now: bool) -> Answer {
    let (key, time) = (arg(args, 0), integer(arg(args, 1))?);
    let from = if from_now { signed(data.now) } else { 0 };
    let end = time.checked_mul(unit).and_then(|ms| ms.checked_add(from));
    let end = end.ok_or_else(|| format!("ERR invalid expire time in '{name}' command"))?;
    let Some(before) = data.keyspace.end(data.database, key) else {
        return Ok(Reply::Int(0));
    };
    for word in args.get(2..).unwrap_or_default() {
        // No end is later than any.
        let later = before.is_some_and(|before| end > signed(before));
        let fits = match capitals(word).as_str() {
            "NX" => before.is_none(),
            "XX" => before.is_some(),
            "GT" => later,
            "LT" => before.is_none_or(|before| end < signed(before)),
            other => return Err(format!("ERR Unsupported option {other}")),
        };
        if !fits {
            return Ok(Reply::Int(0));
        }
    }
    match u64::try_from(end) {
        Ok(end) if end > data.now => data.let_end(key, Some(end)),
        _ => {
            data.remove(key);
        }
    }
    Ok(Reply::Int(1))
}

fn persist(data: &mut Data<'_>, args: &[Vec<u8>]) -> Answer {
    let key = arg(args, 0);
    let has_end = data.keyspace.end(data.database, key).flatten().is_some();
    if has_end {
        data.let_end(key, None);
    }
    Ok(Reply::flag(has_end))
}

fn keys(data: &mut Data<'_>, args: &[Vec<u8>]) -> Answer {
    Ok(Reply::Array(matching(data, arg(args, 0))))
}

fn matching(data: &Data<'_>, pattern: &[u8]) -> Vec<Reply> {
    let keys = data.keyspace.keys(data.database);
    keys.filter(|key| glob::fits(pattern, key))
        .map(Reply::bulk)
        .collect()
}

/// All at once: the cursor is 0.
fn scan(data: &mut Data<'_>, args: &[Vec<u8>]) -> Answer {
    if integer(arg(args, 0)) != Ok(0) {
        return Err("ERR invalid cursor".to_owned());
    }
    let (mut pattern, mut kind): (&[u8], Option<String>) = (b"*", None);
    for pair in args.get(1..).unwrap_or_default().chunks(2) {
        let [name, value] = pair else {
            return Err(SYNTAX.to_owned());
        };
        match capitals(name).as_str() {
            "MATCH" => pattern = value,
            "TYPE" => kind = Some(String::from_utf8_lossy(value).to_ascii_lowercase()),
            "COUNT" => drop(integer(value)?),
            _ => return Err(SYNTAX.to_owned()),
        }
    }
    let fits = |key: &Reply| match (&kind, key) {
        (Some(kind), Reply::Bulk(key)) => data.get(key).is_some_and(|value| value.kind() == kind),
        _ => true,
    };
    let found = matching(data, pattern).into_iter().filter(fits).collect();
    Ok(Reply::Array(vec![Reply::bulk("0"), Reply::Array(found)]))
}

// ---- strings ----

fn get(data: &mut Data<'_>, args: &[Vec<u8>]) -> Answer {
    Ok(data.text(arg(args, 0))?.map_or(Reply::Nil, Reply::bulk))
}

fn mget(data: &mut Data<'_>, args: &[Vec<u8>]) -> Answer {
    let text = |key: &Vec<u8>| {
        data.text(key)
            .ok()
            .flatten()
            .map_or(Reply::Nil, Reply::bulk)
    };
    Ok(Reply::Array(args.iter().map(text).collect()))
}

fn strlen(data: &mut Data<'_>, args: &[Vec<u8>]) -> Answer {
    Ok(Reply::count(
        data.text(arg(args, 0))?.map_or(0, <[u8]>::len),
    ))
}

fn set(data: &mut Data<'_>, args: &[Vec<u8>]) -> Answer {
    let (key, value) = (arg(args, 0), arg(args, 1));
    let (mut fits, mut ends, mut stays, mut tells) = (true, None, false, false);
    let (mut condition, there) = (None, data.get(key).is_some());
    let mut rest = args.iter().skip(2);
    while let Some(word) = rest.next() {
        match capitals(word).as_str() {
            name @ ("NX" | "XX") => {
                fits = there == (name == "XX");
                if condition
                    .replace(name == "XX")
                    .is_some_and(|before| before != (name == "XX"))
                {
                    return Err(SYNTAX.to_owned());
                }
            }
            "KEEPTTL" if ends.is_none() => stays = true,
            "GET" => tells = true,
            name @ ("PX" | "EX" | "PXAT" | "EXAT") if ends.is_none() && !stays => {
                let number = integer(rest.next().ok_or(SYNTAX)?)?;
                let unit = if name.starts_with('P') { 1 } else { 1000 };
                let from = if name.ends_with("AT") {
                    0
                } else {
                    signed(data.now)
                };
                let end = number.checked_mul(unit).and_then(|ms| ms.checked_add(from));
                let end = end
                    .filter(|_| number > 0)
                    .and_then(|end| u64::try_from(end).ok());
                ends = Some(end.ok_or("ERR invalid expire time in 'set' command")?);
            }
            _ => return Err(SYNTAX.to_owned()),
        }
    }
    let before = if tells { get(data, args)? } else { Reply::Nil };
    if fits {
        let kept = data
            .keyspace
            .end(data.database, key)
            .flatten()
            .filter(|_| stays);
        data.put(key, Value::String(value.to_vec()));
        data.keyspace.let_end(data.database, key, ends.or(kept));
    }
    Ok(if fits && !tells { Reply::OK } else { before })
}

fn set_for(data: &mut Data<'_>, args: &[Vec<u8>], unit: &str) -> Answer {
    let words = [arg(args, 0), arg(args, 2), unit.as_bytes(), arg(args, 1)];
    set(data, &words.map(<[u8]>::to_vec))
}

fn add(data: &mut Data<'_>, key: &[u8], by: i64) -> Answer {
    let before = data.text(key)?.map_or(Ok(0), integer)?;
    let sum = before.checked_add(by).ok_or(OVERFLOW)?;
    data.put(key, Value::String(sum.to_string().into_bytes()));
    Ok(Reply::Int(sum))
}

fn decrby(data: &mut Data<'_>, args: &[Vec<u8>]) -> Answer {
    let by = integer(arg(args, 1))?
        .checked_neg()
        .ok_or("ERR decrement would overflow")?;
    add(data, arg(args, 0), by)
}

// ---- hashes ----

fn field<'a>(fields: &'a [Field], name: &[u8]) -> Option<&'a Vec<u8>> {
    fields
        .iter()
        .find(|(field, _)| field == name)
        .map(|(_, value)| value)
}

fn hset(data: &mut Data<'_>, args: &[Vec<u8>]) -> Answer {
    let key = arg(args, 0);
    let pairs = args.get(1..).unwrap_or_default();
    if pairs.len() % 2 != 0 {
        return Err("ERR wrong number of arguments for 'hset' command".to_owned());
    }
    let mut fields = data.hash(key)?.to_vec();
    let before = fields.len();
    for pair in pairs.chunks(2) {
        put_field(&mut fields, arg(pair, 0), arg(pair, 1));
    }
    let new = fields.len() - before;
    data.put(key, Value::Hash(fields));
    Ok(Reply::count(new))
}

fn put_field(fields: &mut Vec<Field>, name: &[u8], value: &[u8]) {
    match fields.iter_mut().find(|(field, _)| field == name) {
        Some((_, place)) => *place = value.to_vec(),
        None => fields.push((name.to_vec(), value.to_vec())),
    }
}

fn hget(data: &mut Data<'_>, args: &[Vec<u8>]) -> Answer {
    let fields = data.hash(arg(args, 0))?;
    Ok(field(fields, arg(args, 1)).map_or(Reply::Nil, Reply::bulk))
}

fn hmget(data: &mut Data<'_>, args: &[Vec<u8>]) -> Answer {
    let fields = data.hash(arg(args, 0))?;
    let value = |name: &Vec<u8>| field(fields, name).map_or(Reply::Nil, Reply::bulk);
    Ok(Reply::Array(args.iter().skip(1).map(value).collect()))
}

fn hgetall(data: &mut Data<'_>, args: &[Vec<u8>]) -> Answer {
    let fields = data.hash(arg(args, 0))?.iter();
    let pairs = fields.map(|(field, value)| (Reply::bulk(field), Reply::bulk(value)));
    Ok(Reply::Map(pairs.collect()))
}

fn hdel(data: &mut Data<'_>, args: &[Vec<u8>]) -> Answer {
    let key = arg(args, 0);
    let mut fields = data.hash(key)?.to_vec();
    let (before, gone) = (fields.len(), args.get(1..).unwrap_or_default());
    fields.retain(|(field, _)| !gone.contains(field));
    let removed = before - fields.len();
    if removed > 0 {
        data.put(key, Value::Hash(fields));
    }
    Ok(Reply::count(removed))
}

fn hincrby(data: &mut Data<'_>, args: &[Vec<u8>]) -> Answer {
    let (key, name, by) = (arg(args, 0), arg(args, 1), integer(arg(args, 2))?);
    let mut fields = data.hash(key)?.to_vec();
    let before = field(&fields, name).map_or(Ok(0), |value| integer(value));
    let before = before.map_err(|_| "ERR hash value is not an integer".to_owned())?;
    let sum = before.checked_add(by).ok_or(OVERFLOW)?;
    put_field(&mut fields, name, sum.to_string().as_bytes());
    data.put(key, Value::Hash(fields));
    Ok(Reply::Int(sum))
}

// ---- lists ----

type Elements = VecDeque<Vec<u8>>;

fn push(data: &mut Data<'_>, args: &[Vec<u8>], add: fn(&mut Elements, Vec<u8>)) -> Answer {
    let key = arg(args, 0);
    let mut list = data.list(key)?.cloned().unwrap_or_default();
    args.iter()
        .skip(1)
        .for_each(|element| add(&mut list, element.clone()));
    let length = list.len();
    data.put(key, Value::List(list));
    Ok(Reply::count(length))
}

fn pop(
    data: &mut Data<'_>,
    args: &[Vec<u8>],
    take: fn(&mut Elements) -> Option<Vec<u8>>,
) -> Answer {
    let key = arg(args, 0);
    let count = match args.get(1..).unwrap_or_default() {
        [] => None,
        [count] => Some(
            integer(count)
                .ok()
                .and_then(|count| usize::try_from(count).ok())
                .ok_or("ERR value is out of range, must be positive")?,
        ),
        _ => return Err(SYNTAX.to_owned()),
    };
    let Some(mut list) = data.list(key)?.cloned() else {
        return Ok(Reply::Nil);
    };
    let elements = std::iter::from_fn(|| take(&mut list)).take(count.unwrap_or(1));
    let mut elements: Vec<Reply> = elements.map(Reply::Bulk).collect();
    if !elements.is_empty() {
        data.put(key, Value::List(list));
    }
    Ok(match count {
        None => elements.pop().unwrap_or(Reply::Nil),
        Some(_) => Reply::Array(elements),
    })
}

/// The place that an index means, negative from the end; it may be outside.
fn place(index: i64, length: usize) -> i64 {
    let length = i64::try_from(length).unwrap_or(i64::MAX);
    if index < 0 {
        index.saturating_add(length)
    } else {
        index
    }
}

/// The places from one index to another.
fn range(args: &[Vec<u8>], length: usize) -> Result<std::ops::Range<usize>, String> {
    let (first, last) = (integer(arg(args, 1))?, integer(arg(args, 2))?);
    let first = usize::try_from(place(first, length)).unwrap_or(0);
    let end = usize::try_from(place(last, length).saturating_add(1))
        .unwrap_or(0)
        .min(length);
    Ok(first.min(end)..end)
}

fn lindex(data: &mut Data<'_>, args: &[Vec<u8>]) -> Answer {
    let (list, index) = (data.list(arg(args, 0))?, integer(arg(args, 1))?);
    let element = list.and_then(|list| list.get(usize::try_from(place(index, list.len())).ok()?));
    Ok(element.map_or(Reply::Nil, Reply::bulk))
}

fn lrange(data: &mut Data<'_>, args: &[Vec<u8>]) -> Answer {
    let list = data.list(arg(args, 0))?;
    let range = range(args, list.map_or(0, VecDeque::len))?;
    let elements = list.into_iter().flat_map(|list| list.range(range.clone()));
    Ok(Reply::Array(elements.map(Reply::bulk).collect()))
}

fn lrem(data: &mut Data<'_>, args: &[Vec<u8>]) -> Answer {
    let (key, count, gone) = (arg(args, 0), integer(arg(args, 1))?, arg(args, 2));
    let mut list: Vec<_> = data.list(key)?.into_iter().flatten().cloned().collect();
    let before = list.len();
    let mut left = if count == 0 {
        u64::MAX
    } else {
        count.unsigned_abs()
    };
    let mut stays = |element: &Vec<u8>| {
        let goes = element == gone && left > 0;
        left -= u64::from(goes);
        !goes
    };
    if count < 0 {
        list.reverse();
    }
    list.retain(|element| stays(element));
    if count < 0 {
        list.reverse();
    }
    let removed = before - list.len();
    if removed > 0 {
        data.put(key, Value::List(list.into()));
    }
    Ok(Reply::count(removed))
}

fn lset(data: &mut Data<'_>, args: &[Vec<u8>]) -> Answer {
    let (key, index) = (arg(args, 0), integer(arg(args, 1))?);
    let mut list = data.list(key)?.cloned().ok_or("ERR no such key")?;
    let at = usize::try_from(place(index, list.len())).ok();
    let element = at
        .and_then(|at| list.get_mut(at))
        .ok_or("ERR index out of range")?;
    *element = arg(args, 2).to_vec();
    data.put(key, Value::List(list));
    Ok(Reply::OK)
}

fn lpos(data: &mut Data<'_>, args: &[Vec<u8>]) -> Answer {
    let (list, wanted) = (data.list(arg(args, 0))?, arg(args, 1));
    let at = list.and_then(|list| list.iter().position(|element| element == wanted));
    Ok(at.map_or(Reply::Nil, Reply::count))
}

// ---- sorted sets ----

fn score(members: &[(f64, Vec<u8>)], member: &[u8]) -> Option<f64> {
    members
        .iter()
        .find(|(_, of)| of == member)
        .map(|(score, _)| *score)
}

fn zadd(data: &mut Data<'_>, args: &[Vec<u8>]) -> Answer {
    let key = arg(args, 0);
    let words = args.get(1..).unwrap_or_default();
    let count = words
        .iter()
        .take_while(|word| {
            ["NX", "XX", "GT", "LT", "CH"]
                .iter()
                .any(|name| is(word, name))
        })
        .count();
    let (flags, pairs) = words.split_at(count);
    let has = |name| flags.iter().any(|flag| is(flag, name));
    if pairs.is_empty() || pairs.len() % 2 != 0 {
        return Err(SYNTAX.to_owned());
    }
    let mut members = data.sorted(key)?.to_vec();
    let (mut new, mut moved) = (0, 0);
    for pair in pairs.chunks(2) {
        let (wanted, member) = (float(arg(pair, 0), NO_FLOAT)?, arg(pair, 1));
        match members.iter_mut().find(|(_, of)| of == member) {
            Some((score, _)) => {
                let refused =
                    has("NX") || has("GT") && wanted <= *score || has("LT") && wanted >= *score;
                if !refused && *score != wanted {
                    *score = wanted;
                    moved += 1;
                }
            }
            None if has("XX") => {}
            None => {
                members.push((wanted, member.to_vec()));
                new += 1;
            }
        }
    }
    if new + moved > 0 {
        members.sort_by(|(a, one), (b, other)| a.total_cmp(b).then_with(|| one.cmp(other)));
        data.put(key, Value::Sorted(members));
    }
    Ok(Reply::Int(if has("CH") { new + moved } else { new }))
}

fn zrem(data: &mut Data<'_>, args: &[Vec<u8>]) -> Answer {
    let key = arg(args, 0);
    let mut members = data.sorted(key)?.to_vec();
    let (before, gone) = (members.len(), args.get(1..).unwrap_or_default());
    members.retain(|(_, member)| !gone.contains(member));
    let removed = before - members.len();
    if removed > 0 {
        data.put(key, Value::Sorted(members));
    }
    Ok(Reply::count(removed))
}

fn zscore(data: &mut Data<'_>, args: &[Vec<u8>]) -> Answer {
    let members = data.sorted(arg(args, 0))?;
    Ok(score(members, arg(args, 1)).map_or(Reply::Nil, Reply::Double))
}

fn zrank(data: &mut Data<'_>, args: &[Vec<u8>]) -> Answer {
    let members = data.sorted(arg(args, 0))?;
    let at = members.iter().position(|(_, of)| of == arg(args, 1));
    Ok(at.map_or(Reply::Nil, Reply::count))
}

/// Whether a score lies between two bounds; one behind `(` is not in it.
fn between(least: &[u8], most: &[u8]) -> Result<impl Fn(f64) -> bool + use<>, String> {
    let bound = |text: &[u8]| {
        let open = text.strip_prefix(b"(");
        let number = float(open.unwrap_or(text), "ERR min or max is not a float")?;
        Ok::<_, String>((number, open.is_some()))
    };
    let ((least, above), (most, below)) = (bound(least)?, bound(most)?);
    Ok(move |score: f64| {
        (score > least || !above && score == least) && (score < most || !below && score == most)
    })
}

fn zcount(data: &mut Data<'_>, args: &[Vec<u8>]) -> Answer {
    let is_in = between(arg(args, 1), arg(args, 2))?;
    let members = data.sorted(arg(args, 0))?;
    Ok(Reply::count(
        members.iter().filter(|(score, _)| is_in(*score)).count(),
    ))
}

fn members<'a>(found: impl Iterator<Item = &'a (f64, Vec<u8>)>, scores: bool) -> Reply {
    if scores {
        Reply::Scores(
            found
                .map(|(score, member)| (member.clone(), *score))
                .collect(),
        )
    } else {
        Reply::Array(found.map(|(_, member)| Reply::bulk(member)).collect())
    }
}

fn zrange(data: &mut Data<'_>, args: &[Vec<u8>]) -> Answer {
    let scores = match args.get(3..).unwrap_or_default() {
        [] => false,
        [word] if is(word, "WITHSCORES") => true,
        _ => return Err(SYNTAX.to_owned()),
    };
    let found = data.sorted(arg(args, 0))?;
    let range = range(args, found.len())?;
    Ok(members(found.get(range).unwrap_or_default().iter(), scores))
}

fn zrangebyscore(data: &mut Data<'_>, args: &[Vec<u8>]) -> Answer {
    let (mut scores, mut skip, mut take) = (false, 0, usize::MAX);
    let mut rest = args.iter().skip(3);
    while let Some(word) = rest.next() {
        match capitals(word).as_str() {
            "WITHSCORES" => scores = true,
            "LIMIT" => {
                let mut number = || integer(rest.next().ok_or(SYNTAX)?);
                skip = usize::try_from(number()?).unwrap_or(usize::MAX);
                take = usize::try_from(number()?).unwrap_or(usize::MAX);
            }
            _ => return Err(SYNTAX.to_owned()),
        }
    }
    let is_in = between(arg(args, 1), arg(args, 2))?;
    let all = data.sorted(arg(args, 0))?.iter();
    let found = all.filter(|(score, _)| is_in(*score)).skip(skip).take(take);
    Ok(members(found, scores))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    /// The names that stand behind `call('` in a script.
    fn called(text: &str) -> impl Iterator<Item = &str> {
        let mut parts = text.split("call('");
        parts.next();
        parts.filter_map(|rest| rest.split_once('\'').map(|(name, _)| name))
    }

    #[test]
    fn every_command_of_the_scripts_is_known() {
        let proto = Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto/src");
        let files = |folder: &Path| {
            let files = std::fs::read_dir(folder).unwrap();
            files.map(|file| file.unwrap().path())
        };
        let folders = files(&proto.join("primitives")).filter(|path| path.is_dir());
        let mut names = BTreeSet::new();
        for file in folders
            .chain([proto.join("wire/lua")])
            .flat_map(|one| files(&one))
        {
            if file.extension().is_some_and(|end| end == "lua") {
                let text = std::fs::read_to_string(file).unwrap();
                names.extend(called(&text).map(str::to_owned));
            }
        }
        assert!(names.len() > 30, "{names:?}");
        let unknown =
            |name: &&String| *name != "TIME" && *name != "PUBLISH" && find(name).is_none();
        let unknown: Vec<&String> = names.iter().filter(unknown).collect();
        assert!(
            unknown.is_empty(),
            "scripts call {unknown:?}, which commands.rs lacks"
        );
    }
}
