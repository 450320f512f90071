//! The answer of a resolver, and what of it a guest gets: the chain of names from the question on, and the
//! records at its end.

use std::net::IpAddr;

use domain::base::iana::{Class, Rcode, Rtype};
use domain::base::{Message, Name as WireName, ParsedName, Record, ToName, Ttl};
use domain::rdata::AllRecordData;

use super::question::Question;

/// Most addresses that a guest gets: each one is pinned.
const MOST_ADDRESSES: usize = 128;
/// Most records that are looked at.
const MOST_RECORDS: usize = 512;
/// Bytes of the longest message over TCP.
const LONGEST_MESSAGE: usize = 0xffff;
/// Most names in a chain. Resolvers follow 11 or so.
const LONGEST_CHAIN: usize = 16;
/// Longest time for which a guest may keep an answer, in seconds. The addresses stay open for as long.
const LONGEST_TTL: u32 = 3600;

type Data<'a> = AllRecordData<&'a [u8], ParsedName<&'a [u8]>>;
type Parsed<'a> = Record<ParsedName<&'a [u8]>, Data<'a>>;

/// The checked answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// The message to the guest.
    pub message: Vec<u8>,
    /// Addresses of the name, with the seconds for which they hold.
    pub addresses: Vec<(IpAddr, u32)>,
}

/// Checks the answer of a resolver to a question. Addresses that `is_open` refuses are left out.
///
/// # Errors
/// The answer is none to this question, or malformed.
pub(super) fn read(
    question: &Question,
    bytes: &[u8],
    mut is_open: impl FnMut(IpAddr) -> bool,
) -> Result<Answer, &'static str> {
    let message = Message::from_slice(bytes).map_err(|_| "it is too short")?;
    if !message.header().qr() || message.header().tc() {
        return Err("it is no whole answer");
    }
    let rcode = message.header().rcode();
    if ![Rcode::NOERROR, Rcode::NXDOMAIN].contains(&rcode) {
        return Err("the server failed");
    }
    let asked = message.sole_question().map_err(|_| "it has no question")?;
    if !asked.qname().name_eq(&question.wire) || asked.qtype() != question.kind {
        return Err("it answers another question");
    }
    let records = records(message)?;
    let (chain, last) = chain(&records, question)?;
    let too_long = |_| "its records take more than 64 KiB";
    let mut answer = question.begin(rcode);
    // With room for what follows the records.
    answer.set_push_limit(LONGEST_MESSAGE - 64);
    for record in chain {
        answer.push(with_ttl(record)).map_err(too_long)?;
    }
    let mut addresses = Vec::new();
    for record in records.iter().filter(|record| record.owner().name_eq(&last)) {
        let address = match record.data() {
            AllRecordData::A(a) => Some(IpAddr::from(a.addr())),
            AllRecordData::Aaaa(aaaa) => Some(aaaa.addr().into()),
            _ => None,
        };
        if record.rtype() != question.kind || address.is_some_and(|address| !is_open(address)) {
            continue;
        }
        if addresses.len() == MOST_ADDRESSES {
            break;
        }
        addresses.extend(address.map(|address| (address, ttl(record))));
        answer.push(with_ttl(record)).map_err(too_long)?;
    }
    Ok(Answer { message: question.end(answer), addresses })
}

/// The records of the answer's section, of the class IN.
fn records<'a>(message: &'a Message<[u8]>) -> Result<Vec<Parsed<'a>>, &'static str> {
    let section = message.answer().map_err(|_| "its question is cut off")?;
    let mut records = Vec::new();
    for record in section.into_records::<Data<'a>>() {
        let record = record.map_err(|_| "a record is malformed")?;
        if records.len() == MOST_RECORDS {
            return Err("it has too many records");
        }
        if record.class() == Class::IN {
            records.push(record);
        }
    }
    Ok(records)
}

/// The chain of canonical names from the question on, and the name at its end.
fn chain<'r, 'a>(
    records: &'r [Parsed<'a>],
    question: &Question,
) -> Result<(Vec<&'r Parsed<'a>>, WireName<Vec<u8>>), &'static str> {
    let (mut chain, mut last) = (Vec::new(), question.wire.clone());
    if question.kind == Rtype::CNAME {
        return Ok((chain, last));
    }
    loop {
        let next = records.iter().find_map(|record| match record.data() {
            AllRecordData::Cname(cname) if record.owner().name_eq(&last) => Some((record, cname.cname())),
            _ => None,
        });
        let Some((record, target)) = next else { return Ok((chain, last)) };
        if chain.len() == LONGEST_CHAIN {
            return Err("its chain of names is too long, or a loop");
        }
        chain.push(record);
        last = target.to_name();
    }
}

fn ttl(record: &Parsed<'_>) -> u32 {
    record.ttl().as_secs().min(LONGEST_TTL)
}

/// A record for the guest.
fn with_ttl<'r, 'a>(record: &'r Parsed<'a>) -> (&'r ParsedName<&'a [u8]>, Class, Ttl, &'r Data<'a>) {
    (record.owner(), Class::IN, Ttl::from_secs(ttl(record)), record.data())
}
