-- Leases of tourbillon-leases, version 1 of the schema.

-- The versions of the crate that may use the tables: from oldest_ok to version, and later ones that
-- know this version.
create table tourbillon_leases.meta (
  one boolean primary key default true check (one),
  version int not null,
  oldest_ok int not null,
  -- By it a process knows these tables again. A backup has the same one.
  identity bigint not null default hashtextextended(gen_random_uuid()::text, 0),
  -- The server that has granted last: another one, or one that was promoted, may lack what was granted.
  system bigint,
  timeline text,
  -- The database and the table that this row lies in. A dump that is restored has another one.
  of_database oid,
  of_table oid,
  -- The greatest longest lease of all stores, in us.
  longest bigint not null default 0,
  -- Nothing is granted before that.
  opens timestamptz,
  -- When rows that nobody needs were last deleted.
  swept timestamptz
);

-- A row for each name: it is held until `ends`, unless `owner` is null. A free row stays for its token. If `mode` is not
-- 0, the name is shared, and its holders are in `lease_share`.
--
-- There is no index on `ends`: with one no renewal is a HOT update, and the table grows with each of them.
create table tourbillon_leases.lease (
  name text collate "C" primary key check (octet_length(name) between 1 and 1024),
  -- 0 exclusive, -1 shared, or the number of permits.
  mode int not null default 0,
  -- For people. It proves nothing.
  owner text,
  -- What the holder proves with that it holds the name. Null if it is free, or stays locked for a rest.
  secret text,
  token bigint not null,
  -- Of a free row with a `waiter`, and of a shared one with a `turn`: until when it is reserved.
  ends timestamptz not null,
  length interval not null,
  holds int not null default 1,
  data text,
  -- The store whose caller has waited longest, and since when.
  waiter text,
  since timestamptz,
  -- Whether the next release is to be announced for others than `waiter`.
  announce boolean not null default false,
  -- Of a shared name: the store whose caller waits to hold it in another mode, or `*` if callers of several stores do,
  -- and when the last of them has asked.
  asker text,
  asked timestamptz,
  -- Of permits: the store for which a place is reserved.
  turn text,
  -- Of the last detach: the secret of the ticket until it is used, the lease after that, and the options.
  ticket text,
  detached interval,
  terms text
) with (fillfactor = 50);

-- A row for each holder of a shared name: a reader, or a permit. What has run out goes when somebody joins.
create table tourbillon_leases.lease_share (
  name text collate "C",
  secret text collate "C",
  owner text not null,
  place int not null,
  token bigint not null,
  ends timestamptz not null,
  length interval not null,
  holds int not null default 1,
  data text,
  -- Whether the place stays taken for a rest.
  released boolean not null default false,
  primary key (name, secret)
) with (fillfactor = 50);
