//! The function `guard`, by which a transaction of a user's is fenced.

use chaos::servers::postgres::database;
use kit::wait;
use tourbillon_leases::{Acquired, Claim, Outcome, Released, Renewal, Secret};

use crate::calls::Calls;
use crate::shop::{LEASE, LIMIT, MS, acquire, granted, held, psql, release, renew, store};

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn the_holder_alone_passes_until_it_holds_no_more() {
    let database = database();
    let store = store(&database);
    let token = granted(&store, "it's", "a:1");
    let guard = |token: u64| {
        let call = format!("select tourbillon_leases.guard('it''s', {token})");
        database.psql(&call)
    };
    let refused = |token: u64| {
        let refused = guard(token).expect_err("it is not held with that token");
        assert!(refused.contains("TB002"), "{refused}");
        assert!(refused.contains(&format!("token {token}")), "{refused}");
    };
    assert_eq!(guard(token).as_deref(), Ok(""));
    refused(token - 1);
    refused(token + 1);
    // After a release, also where the name stays locked for a rest.
    let secret = Secret::new("a:1");
    let batch = [tourbillon_leases::Holding::new("it's", secret).after(LEASE)];
    let released = store.release_many(Default::default(), &batch, LIMIT);
    assert_eq!(released, Ok(vec![Ok(Released::Released)]));
    refused(token);
    psql(
        &database,
        "update tourbillon_leases.lease set ends = now() where name = 'it''s'",
    );
    let later = granted(&store, "it's", "a:2");
    refused(token);
    assert_eq!(guard(later).as_deref(), Ok(""));
    assert_eq!(release(&store, "it's", "a:2"), Released::Released);
    refused(later);
    // A lease that has run out.
    let short = Claim::new("it's", "a:3", Secret::new("a:3"), MS);
    let Ok(Acquired::Granted { token, .. }) = store.acquire(&short, LIMIT) else {
        panic!("it is free");
    };
    wait::until("it runs out", || guard(token).is_err());
    refused(token);
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_guarded_transaction_holds_the_name_and_holds_up_nobody_else() {
    let database = database();
    let store = store(&database);
    let token = granted(&store, "x", "a:1");
    granted(&store, "y", "a:1");
    let mut client = database.client();
    let mut transaction = client.transaction().unwrap();
    let guard = format!("select tourbillon_leases.guard('x', {token})");
    transaction.batch_execute(&guard).unwrap();
    // Renewals and releases go on.
    let secret = Secret::new("a:1");
    let batch = ["x", "y"].map(|name| Renewal::new(name, secret, LEASE));
    assert_eq!(renew(&store, &batch), vec![Outcome::Renewed; 2]);
    assert_eq!(release(&store, "x", "a:1"), Released::Released);
    // The name is nobody's, and nobody gets it. Nor does anybody wait on the connection for it.
    for _ in 0..3 {
        match acquire(&store, "x", "b:1") {
            Ok(Acquired::Held { remaining }) => assert!(remaining <= 20 * MS),
            answer => panic!("{answer:?}"),
        }
    }
    // Who has waited for long asks less often.
    let claim = Claim::new("x", "b:1", Secret::new("b:1"), LEASE).waited(LEASE);
    assert_eq!(held(&store, &claim), 100 * MS);
    granted(&store, "z", "b:1");
    // The same for a lease that runs out.
    transaction.commit().unwrap();
    let short = Claim::new("x", "c:1", Secret::new("c:1"), 500 * MS);
    let Ok(Acquired::Granted { token, .. }) = store.acquire(&short, LIMIT) else {
        panic!("the transaction has ended");
    };
    let mut transaction = client.transaction().unwrap();
    let guard = format!("select tourbillon_leases.guard('x', {token})");
    if transaction.batch_execute(&guard).is_err() {
        // It has run out before, on a busy machine.
        return;
    }
    wait::until("it runs out", || {
        matches!(store.holder_of("x", LIMIT), Ok(None))
    });
    assert!(matches!(
        acquire(&store, "x", "d:1"),
        Ok(Acquired::Held { .. })
    ));
    transaction.commit().unwrap();
    granted(&store, "x", "d:1");
}

#[test]
#[cfg_attr(not(has_postgres), ignore = "needs: apt-get install postgresql")]
fn a_role_that_only_writes_needs_the_schema_alone() {
    let database = database();
    let store = store(&database);
    let token = granted(&store, "x", "a:1");
    let role = format!("writer_{}", database.name());
    psql(
        &database,
        &format!("create role {role} login; grant usage on schema tourbillon_leases to {role}"),
    );
    let guard = |token| format!("select tourbillon_leases.guard('x', {token})");
    assert_eq!(database.psql_as(&role, &guard(token)).as_deref(), Ok(""));
    assert!(database.psql_as(&role, &guard(token + 1)).is_err());
    let read = database.psql_as(&role, "select secret from tourbillon_leases.lease");
    assert!(read.is_err_and(|why| why.contains("permission denied")));
}
