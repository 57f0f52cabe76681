-- Where the file system of a home was mounted when the home was last seen: a home that is missing while another one, or
-- none, is mounted there is not gone.
ALTER TABLE delivery ADD COLUMN mount TEXT;
ALTER TABLE ssh_delivery ADD COLUMN mount TEXT;
