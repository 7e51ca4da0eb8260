// Keys and self-signed certificates for tests of TLS.
#pragma once

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <fstream>
#include <sstream>
#include <string>

#include "common/log/check.h"

namespace retroinfer {

// Writes a self-signed certificate for "localhost" (its own CA) and its key as PEM files.
inline void WriteCertificate(const std::string& certificate_file, const std::string& key_file,
                             long valid_seconds = 3600) {
  EVP_PKEY* const key = EVP_RSA_gen(2048);
  X509* const certificate = X509_new();
  X509_set_version(certificate, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
  X509_gmtime_adj(X509_getm_notAfter(certificate), valid_seconds);
  X509_set_pubkey(certificate, key);
  X509_NAME* const name = X509_get_subject_name(certificate);
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>("localhost"), -1, -1, 0);
  X509_set_issuer_name(certificate, name);
  const auto add_extension = [certificate](int nid, const char* value) {
    X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, nullptr, nid, value);
    RI_CHECK(extension != nullptr);
    X509_add_ext(certificate, extension, -1);
    X509_EXTENSION_free(extension);
  };
  add_extension(NID_subject_alt_name, "DNS:localhost");
  add_extension(NID_basic_constraints, "critical,CA:TRUE");
  RI_CHECK(X509_sign(certificate, key, EVP_sha256()) != 0);

  FILE* file = std::fopen(certificate_file.c_str(), "w");
  RI_CHECK(file != nullptr && PEM_write_X509(file, certificate) == 1);
  std::fclose(file);
  file = std::fopen(key_file.c_str(), "w");
  RI_CHECK(file != nullptr &&
           PEM_write_PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr) == 1);
  std::fclose(file);
  X509_free(certificate);
  EVP_PKEY_free(key);
}

inline std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace retroinfer
