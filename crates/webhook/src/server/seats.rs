//! Limits the number of connections by seats. A connection that waits for its client can lose its seat to a new
//! connection, so idle and slow clients never keep an API server out. A connection whose review is being decided keeps
//! its seat.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// The most connections at a time. Each API server keeps a few open.
pub(super) const CONNECTIONS: usize = 1024;
/// The most connections from one address, so that one address cannot take the seats of idle connections from others.
pub(super) const FROM_ONE_ADDRESS: usize = CONNECTIONS / 4;
/// The deadline of the first answer on a connection. An API server connects because it has a review to send.
const FIRST: Duration = Duration::from_secs(10);
/// The longest time between two answers. Go's clients close an idle connection after 90 s. If the server closed such a
/// connection earlier, it could do so just when a review is sent, and clients do not repeat a POST.
const NEXT: Duration = Duration::from_mins(2);

/// All seats of one listener.
#[derive(Default)]
pub(super) struct Hall {
    seats: Mutex<Seats>,
}

#[derive(Default)]
struct Seats {
    taken: BTreeMap<u64, Occupant>,
    next: u64,
}

struct Occupant {
    address: IpAddr,
    /// Requests whose bodies have not arrived completely.
    coming: usize,
    /// Requests that are being answered.
    open: usize,
    is_answered: bool,
    /// Since when the connection waits for its client, if `open` is 0.
    since: Instant,
    yields: CancellationToken,
}

/// The seat of a connection, until this value is dropped or the seat is given to another connection.
pub(super) struct Seat {
    hall: Arc<Hall>,
    number: u64,
    yields: CancellationToken,
}

/// A request of a connection, until it is answered.
pub(super) struct Open {
    seat: Arc<Seat>,
    is_there: AtomicBool,
}

#[expect(clippy::disallowed_methods, reason = "measures how long a peer is silent")]
fn now() -> Instant {
    Instant::now()
}

impl Hall {
    /// Returns a seat for a new connection. If none is free, a waiting connection loses its seat; if the address has
    /// its maximum, one of its own. Connections without any answer lose theirs first, among these those without a
    /// request, and among equals the one that has waited longest. Returns `None` if no connection waits.
    pub(super) fn seat(self: &Arc<Self>, address: IpAddr) -> Option<Seat> {
        self.seat_at(address, now())
    }

    fn seat_at(self: &Arc<Self>, address: IpAddr, since: Instant) -> Option<Seat> {
        let mut seats = self.seats.lock();
        let of_address = seats.taken.values().filter(|occupant| occupant.address == address).count();
        let is_crowded = of_address >= FROM_ONE_ADDRESS;
        if is_crowded || seats.taken.len() >= CONNECTIONS {
            let rivals = seats.taken.iter().filter(|(_, rival)| !is_crowded || rival.address == address);
            let waiting = rivals.filter(|(_, rival)| rival.open == 0);
            let longest = *waiting.min_by_key(|(_, rival)| (rival.is_answered, rival.coming > 0, rival.since))?.0;
            seats.taken.remove(&longest)?.yields.cancel();
        }
        let (number, yields) = (seats.next, CancellationToken::new());
        seats.next += 1;
        let occupant = Occupant { address, coming: 0, open: 0, is_answered: false, since, yields: yields.clone() };
        seats.taken.insert(number, occupant);
        Some(Seat { hall: Arc::clone(self), number, yields })
    }
}

impl Seat {
    /// Records a request whose body has not arrived yet.
    pub(super) fn request(self: &Arc<Self>) -> Open {
        if let Some(own) = self.hall.seats.lock().taken.get_mut(&self.number) {
            own.coming += 1;
        }
        Open { seat: Arc::clone(self), is_there: AtomicBool::new(false) }
    }

    /// Returns when the connection must end: its client is silent for too long, or it lost its seat.
    pub(super) async fn ended(&self) {
        let silent = async {
            while let Some(left) = self.left(now()) {
                tokio::time::sleep(left).await;
            }
        };
        tokio::select! {
            () = self.yields.cancelled() => {}
            () = silent => {}
        }
    }

    /// Returns the time until the client is silent for too long; `None` if it already is.
    fn left(&self, now: Instant) -> Option<Duration> {
        let seats = self.hall.seats.lock();
        let own = seats.taken.get(&self.number)?;
        let patience = if own.is_answered { NEXT } else { FIRST };
        if own.open > 0 {
            return Some(patience);
        }
        patience.checked_sub(now.saturating_duration_since(own.since)).filter(|left| !left.is_zero())
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.hall.seats.lock().taken.remove(&self.number);
    }
}

impl Open {
    /// Records that the whole request has arrived. The connection then keeps its seat until the answer.
    pub(super) fn begin(&self) {
        if let Some(own) = self.seat.hall.seats.lock().taken.get_mut(&self.seat.number)
            && !self.is_there.swap(true, Ordering::Relaxed)
        {
            own.coming -= 1;
            own.open += 1;
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(own) = self.seat.hall.seats.lock().taken.get_mut(&self.seat.number) {
            let count = if *self.is_there.get_mut() { &mut own.open } else { &mut own.coming };
            *count -= 1;
            own.is_answered = true;
            own.since = now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    /// Takes all seats of an address, one per second.
    fn filled(hall: &Arc<Hall>, last: u8, from: Instant) -> Vec<Arc<Seat>> {
        let at = |second: usize| from + Duration::from_secs(second as u64);
        let seats = (0..FROM_ONE_ADDRESS).map(|second| hall.seat_at(address(last), at(second)).map(Arc::new));
        seats.collect::<Option<_>>().expect("there are free seats")
    }

    fn open(seat: &Arc<Seat>) -> Open {
        let open = seat.request();
        open.begin();
        open
    }

    fn lost(seats: &[Arc<Seat>]) -> Vec<usize> {
        (0..seats.len()).filter(|at| seats[*at].yields.is_cancelled()).collect()
    }

    #[test]
    fn one_address_takes_seats_from_itself_only() {
        let (hall, began) = (Arc::new(Hall::default()), now());
        let other = hall.seat_at(address(2), began).expect("a seat is free");
        let seats = filled(&hall, 1, began + Duration::from_secs(1));
        assert!(lost(&seats).is_empty());
        let later = began + Duration::from_hours(1);
        let _more = [hall.seat_at(address(1), later), hall.seat_at(address(1), later)];
        assert_eq!((lost(&seats), other.yields.is_cancelled()), (vec![0, 1], false));
    }

    #[test]
    fn the_connection_that_waited_longest_loses_its_seat() {
        let (hall, began) = (Arc::new(Hall::default()), now());
        let mut seats = filled(&hall, 1, began);
        for last in 2..=4 {
            seats.extend(filled(&hall, last, began + Duration::from_hours(1)));
        }
        assert_eq!(seats.len(), CONNECTIONS);
        // The first request is being answered, the second was answered, and the third is sending its body.
        let first = open(&seats[0]);
        drop(open(&seats[1]));
        let third = seats[2].request();
        let newcomer = |last| {
            hall.seat_at(address(last), began + Duration::from_hours(9))
                .map(Arc::new)
                .expect("another connection gives up its seat")
        };
        let ninth = newcomer(9);
        assert_eq!(lost(&seats), [3]);
        let others: Vec<Open> = seats[4..].iter().map(open).collect();
        let eighth = open(&newcomer(8));
        assert!(ninth.yields.is_cancelled(), "a connection without a request loses its seat first");
        let seventh = open(&newcomer(7));
        assert_eq!(lost(&seats), [2, 3], "a connection without any answer loses its seat before an answered one");
        let _sixth = newcomer(6);
        assert_eq!(lost(&seats), [1, 2, 3]);
        drop((first, third, others, eighth, seventh));
    }

    #[test]
    fn no_seat_is_given_while_all_connections_are_being_answered() {
        let (hall, began) = (Arc::new(Hall::default()), now());
        let seats = filled(&hall, 1, began);
        let open: Vec<Open> = seats.iter().map(open).collect();
        assert!(hall.seat(address(1)).is_none() && lost(&seats).is_empty());
        drop((open, seats));
        assert!(hall.seats.lock().taken.is_empty());
    }

    #[test]
    fn a_connection_without_a_request_ends_after_its_deadline() {
        let (hall, began) = (Arc::new(Hall::default()), now());
        let seat = Arc::new(hall.seat_at(address(1), began).expect("a seat is free"));
        assert_eq!(seat.left(began + FIRST / 2), Some(FIRST / 2));
        assert_eq!(seat.left(began + FIRST), None);
        let open = open(&seat);
        assert!(seat.left(began + NEXT).is_some(), "a connection that is being answered does not end");
        drop(open);
        assert!(seat.left(began + NEXT).is_some_and(|left| left < Duration::from_secs(1)));
        assert_eq!(seat.left(now() + NEXT), None);
    }
}
