// Package chap is CHAP (RFC 1994) as iSCSI uses it (RFC 7143, 12.1.3): algorithms, secrets, challenges and
// the text form of binary values. It is the same for both ends and knows no PDU: who asks whom, and when,
// is the login's business in iscsi/target and iscsi/initiator.
//
//	id, challenge := challenger.Challenge()
//	response := chap.SHA256.Response(id, secret, challenge)
//	ok := chap.SHA256.Verify(response, id, secret, challenge)
//
// CHAP proves that the peer knows a secret. It protects nothing that is sent afterwards, and whoever sees an
// exchange can try secrets against it at leisure: hence the rule of at least 96 bits (RFC 7143, 9.2.1).
package chap
